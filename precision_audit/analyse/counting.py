"""Exact counts of one tensor's elements by magnitude, fast enough for every value of every batch.

Takes a float tensor of any format; gives `Counts`: extremes, zeros, NaN, infinities and a table with one row per power
of two: how many elements lie in [2**e, 2**(e+1)), how many are 2**e exactly, and how many are 2**e * (2 - 2**-j) or
more for j up to 7. With these a threshold of any format with at most 6 mantissa bits falls between counted elements;
for wider formats `points` are counted apart. `Counts` of several batches add up. Never copies a dense tensor, whatever
its strides, and never changes one.

How: the bits of an fp32 number without the sign, 2 * (its upper 16 bits) + (whether any lower bit is set), are a key of
16 bits that orders magnitudes, and tells zero, every power of two and infinity from their neighbours. One bincount
over the keys gives all of the above. bf16, fp16 and fp8 are widened to fp32, which is exact; fp64 and the subnormals
of fp32 are taken apart number by number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CHUNK = 1 << 18  # elements at a time: keys of that many stay in a second-level cache
_ONES = 7  # mantissa bits in a key
_COLUMNS = 2 + _ONES  # all, exact powers of two, then at least j ones at the head of the mantissa
_Table = NDArray[np.int64]
_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_HEAD = 64  # elements that are looked at first: of most tensors no half holds even these


@dataclass(slots=True)
class Counts:
    """What one tensor, or one value over several batches, holds. Row i of `table` is the exponent `first` + i."""

    count: int = 0
    zeros: int = 0
    nan: int = 0
    infinite: int = 0
    negative_infinite: int = 0
    lowest: float = math.inf
    highest: float = -math.inf
    smallest: float = math.inf
    whole: bool = True
    held: frozenset[str] = frozenset(_HALVES)
    first: int = 0
    table: _Table = field(default_factory=lambda: np.zeros((0, _COLUMNS), np.int64))
    splits: dict[float, int] = field(default_factory=dict)

    @property
    def amax(self) -> float:
        """Largest finite magnitude, below zero where there is none."""
        return max(self.highest, -self.lowest) if self.highest >= self.lowest else -1.0

    def merge(self, other: Counts) -> None:
        """Add what another tensor holds."""
        self.count += other.count
        self.zeros += other.zeros
        self.nan += other.nan
        self.infinite += other.infinite
        self.negative_infinite += other.negative_infinite
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.smallest = min(self.smallest, other.smallest)
        self.whole = self.whole and other.whole
        self.held &= other.held
        for point, number in other.splits.items():
            self.splits[point] = self.splits.get(point, 0) + number
        self._put(other.first, other.table)

    def _put(self, first: int, rows: _Table) -> None:
        if not len(rows):
            return
        if not len(self.table):
            self.first, self.table = first, rows.copy()
            return
        start, stop = min(self.first, first), max(self.first + len(self.table), first + len(rows))
        if (start, stop) != (self.first, self.first + len(self.table)):
            grown = np.zeros((stop - start, _COLUMNS), np.int64)
            grown[self.first - start : self.first - start + len(self.table)] = self.table
            self.first, self.table = start, grown
        self.table[first - start : first - start + len(rows)] += rows


def counted(tensor: Tensor, points: Sequence[float] = (), known: float = math.inf, fraction: bool = False) -> Counts:
    """Counts of `tensor`.

    `points`: thresholds that the table does not resolve. Of the caller's other batches, `known` is the smallest
    magnitude so far (an exact one is looked for only below it) and `fraction` that a number was no integer already.
    """
    flat, times = _elements(tensor)
    found = Counts(count=flat.numel() * times)
    if flat.numel():
        if flat.dtype == torch.float64:
            _count_wide(flat, found, points)
        else:
            _count_keys(flat, found, points, known)
        found.whole = not fraction and _whole(flat, found)
        found.held = frozenset(name for name, half in _HALVES.items() if _holds(half, flat))
        if times > 1:
            _multiply(found, times)
    return found


def _elements(tensor: Tensor) -> tuple[Tensor, int]:
    """All elements in one dimension, in memory order where that saves a copy, and how often each occurs."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_neg().cpu()
    times = 1
    for axis in range(tensor.dim() - 1, -1, -1):
        if tensor.stride(axis) == 0 and tensor.shape[axis] > 1:  # expanded
            times *= tensor.shape[axis]
            tensor = tensor.select(axis, 0)
    if tensor.numel() and not tensor.is_contiguous() and _dense(tensor):
        return torch.as_strided(tensor, (tensor.numel(),), (1,)), times
    return tensor.reshape(-1), times


def _dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in whatever order."""
    expected = 1
    axes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in axes if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _multiply(found: Counts, times: int) -> None:
    for name in ("zeros", "nan", "infinite", "negative_infinite"):
        setattr(found, name, getattr(found, name) * times)
    found.table *= times
    found.splits = {point: number * times for point, number in found.splits.items()}


def _chunks(flat: Tensor) -> Iterator[Tensor]:
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        yield chunk if chunk.dtype in (torch.float32, torch.float64) else chunk.float()


def _count_keys(flat: Tensor, found: Counts, points: Sequence[float], known: float) -> None:
    first, counts = _bincount(flat)
    found.zeros = int(flat.numel() - counts.sum())
    nonfinite = int(counts[max(_INFINITE - first, 0) :].sum())
    if nonfinite:
        found.infinite = int(counts[_INFINITE - first]) if first <= _INFINITE else 0
        found.nan = nonfinite - found.infinite
        found.negative_infinite = sum(int((c == -math.inf).sum()) for c in _chunks(flat)) if found.infinite else 0
    _extremes(flat, found, nonfinite > 0)
    rows = counts[: max(_INFINITE - first, 0)].reshape(-1, 128, 2)
    subnormal = first == 0 and bool(rows[:1].any())
    if len(rows) > (first == 0):
        found._put(max(first // 256, 1) - 127, _columns(rows[first == 0 :]))
    if subnormal:
        for chunk in _chunks(flat):
            magnitude = chunk.abs()
            part = magnitude[(magnitude < 2.0**-126) & (magnitude.view(torch.int32) != 0)]
            _apart(part.double().numpy(), found)
    _smallest(flat, found, first, counts, known)
    _split(flat, found, points)


_INFINITE = 0xFF00  # key of infinity; those above are NaN
_FEW = 8192  # elements up to which a short table is made for the keys that occur


def _bincount(flat: Tensor) -> tuple[int, _Table]:
    """How often each key but zero occurs: the first key, a multiple of 256, and the counts from there on."""
    size = min(flat.numel(), _CHUNK)
    upper, rest = torch.empty(size, dtype=torch.int32), torch.empty(size, dtype=torch.int32)
    if flat.numel() <= _FEW:
        keys = _keys(next(_chunks(flat)), upper, rest).numpy()
        keys = keys[keys != 0]
        first = int(keys.min()) & ~0xFF if len(keys) else 0
        few = np.bincount(keys - first)
        return first, np.concatenate((few, np.zeros(-len(few) % 256, np.int64)))
    total = torch.zeros(1 << 16, dtype=torch.int64)
    for chunk in _chunks(flat):
        total.add_(torch.bincount(_keys(chunk, upper[: chunk.numel()], rest[: chunk.numel()]), minlength=1 << 16))
    counts: _Table = total.numpy()
    counts[0] = 0
    used = np.flatnonzero(counts.reshape(256, 256).max(axis=1))
    if not len(used):
        return 0, counts[:0]
    return int(used[0]) * 256, counts[used[0] * 256 : (used[-1] + 1) * 256]


def _keys(chunk: Tensor, keys: Tensor, low: Tensor) -> Tensor:
    torch.bitwise_and(chunk.contiguous().view(torch.int32), 0x7FFFFFFF, out=low)
    torch.bitwise_right_shift(low, 16, out=keys)
    low.neg_().bitwise_right_shift_(16)  # minus the upper half rounded up, which is one more where a lower bit is set
    return keys.sub_(low)


def _columns(rows: _Table) -> _Table:
    """Columns of `Counts.table` from counts by (exponent, 7 mantissa bits, lower bits)."""
    mantissa = rows.sum(axis=2)
    table = np.empty((len(rows), _COLUMNS), np.int64)
    table[:, 0] = mantissa.sum(axis=1)
    table[:, 1] = rows[:, 0, 0]
    for ones in range(1, _ONES + 1):
        table[:, 1 + ones] = mantissa[:, 128 - (128 >> ones) :].sum(axis=1)
    return table


def _extremes(flat: Tensor, found: Counts, nonfinite: bool) -> None:
    for chunk in _chunks(flat) if nonfinite or flat.dtype not in (torch.float32, torch.float64) else (flat,):
        finite = chunk[torch.isfinite(chunk)] if nonfinite else chunk
        if finite.numel():
            lowest, highest = torch.aminmax(finite)
            found.lowest = min(found.lowest, float(lowest))
            found.highest = max(found.highest, float(highest))


def _smallest(flat: Tensor, found: Counts, first: int, counts: _Table, known: float) -> None:
    """The smallest magnitude but zero, or `known` where that cannot be undercut."""
    filled = np.flatnonzero(counts[: max(_INFINITE - first, 0)])
    if not len(filled):
        return
    key = first + int(filled[0])
    edge = float(np.array([(key >> 1) << 16], np.int32).view(np.float32)[0])  # lower end of the key's numbers
    if not key & 1 or edge >= known:
        found.smallest = edge if not key & 1 else known
        return
    least = 0x7FFFFFFF
    for chunk in _chunks(flat):
        bits = chunk.contiguous().view(torch.int32) & 0x7FFFFFFF
        least = min(least, int(bits.sub_(1).bitwise_and_(0x7FFFFFFF).min()))  # zero becomes the largest
    found.smallest = float(np.array([least + 1], np.int32).view(np.float32)[0])


def _split(flat: Tensor, found: Counts, points: Sequence[float]) -> None:
    """Of the elements in a point's power of two, how many are the point or more."""
    for point in points:
        row = math.frexp(point)[1] - 1 - found.first
        if not 0 <= row < len(found.table) or not found.table[row, 0]:
            continue
        number = 0
        if found.amax >= point:
            up = float(_up(point)) if flat.dtype != torch.float64 else point
            beyond = sum(int(((m := chunk.abs()) >= up).sum() - (m == math.inf).sum()) for chunk in _chunks(flat))
            number = beyond - int(found.table[row + 1 :, 0].sum())
        found.splits[point] = number


def _up(point: float) -> np.float32:
    """The smallest fp32 number that is not below `point`: comparisons with fp32 tensors take place in fp32."""
    near = np.float32(point)
    return near if float(near) >= point else np.nextafter(near, np.float32(np.inf))


def _count_wide(flat: Tensor, found: Counts, points: Sequence[float]) -> None:
    for chunk in _chunks(flat):
        numbers = chunk.numpy()
        finite = numbers[np.isfinite(numbers)]
        nan = int(np.isnan(numbers).sum())
        found.nan += nan
        found.infinite += len(numbers) - len(finite) - nan
        found.negative_infinite += int((numbers == -np.inf).sum())
        if len(finite):
            found.lowest = min(found.lowest, float(finite.min()))
            found.highest = max(found.highest, float(finite.max()))
        present = np.abs(finite[finite != 0])
        found.zeros += len(finite) - len(present)
        if len(present):
            found.smallest = min(found.smallest, float(present.min()))
            _apart(present, found)
    _split(flat, found, points)


def _apart(present: NDArray[np.float64], found: Counts) -> None:
    """Rows of the table for magnitudes above zero, by taking each number apart."""
    if not len(present):
        return
    fraction, exponent = np.frexp(present)
    exponent, fraction = exponent - 1, fraction * 2
    first = int(exponent.min())
    length = int(exponent.max()) - first + 1
    bounds = [1.0, None, *(2 - 2.0**-ones for ones in range(1, _ONES + 1))]
    rows = [
        np.bincount(exponent[fraction == 1 if bound is None else fraction >= bound] - first, minlength=length)
        for bound in bounds
    ]
    found._put(first, np.stack(rows, axis=1).astype(np.int64))


def _whole(flat: Tensor, found: Counts) -> bool:
    """Whether every finite element is an integer."""
    if found.smallest < 1:
        return False
    finite = (chunk[torch.isfinite(chunk)] if found.nan or found.infinite else chunk for chunk in _chunks(flat))
    return all(bool((chunk == chunk.trunc()).all()) for chunk in finite)


def _holds(half: torch.dtype, flat: Tensor) -> bool:
    """Whether every element is one of the format `half`; NaN is one of every format."""
    chunks = (flat[:_HEAD], *_chunks(flat)) if flat.numel() > _HEAD else (flat,)
    return all(bool(((chunk.to(half).to(chunk.dtype) == chunk) | chunk.isnan()).all()) for chunk in chunks)
