"""How far one tensor is from another: the figures of a verification.

Takes the reference's tensor and the other model's; gives one `Measure`, computed in float64 and in pieces, so that the
logits of a language model need no second copy in memory. Never judges: limits belong to `verify`.

Positions where the reference is already NaN or infinite say nothing about the conversion and are left out of every
sum. A position that is finite in the reference and is not in the other model is a failure of the other one, whatever
the rest looks like: its relative error is infinite. An infinity of the reference (a mask of -inf) that became a large
finite number is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

ZERO_GRADIENT = 2.0**-18  # 64 roundings of fp32; see gradient_figure
_PIECE = 1 << 17  # elements at a time: 1 MiB in float64 for each side stays in the cache


@dataclass(frozen=True, slots=True)
class Measure:
    """`relative_l2` is ‖other − reference‖ / ‖reference‖, absolute where the reference is zero; for integers and bools
    it is the share of elements that differ. The last three are what the figures were made of."""

    relative_l2: float
    max_abs: float
    sqnr_db: float
    cosine: float
    nonfinite: int
    reference_nonfinite: int
    flip_rate: float | None
    difference_l2: float
    reference_l2: float
    count: int
    row_median: float | None = None  # of the rows' own relative L2; None where there are no rows, or none was asked for

    @property
    def compared(self) -> bool:
        """Whether there was any element that is finite in the reference."""
        return self.count > self.reference_nonfinite


def measure(reference: Tensor, other: Tensor, *, rows: bool = False) -> Measure:
    """Every figure of one pair of tensors of one shape; a pair of two shapes is infinitely far apart. `rows`: the
    median over rows as well, which one huge row does not decide."""
    if reference.shape != other.shape:
        return _apart(reference, other)
    sums = _Sums()
    left, right = _flat(reference), _flat(other)
    for start in range(0, left.numel(), _PIECE):
        sums.add(left[start : start + _PIECE], right[start : start + _PIECE])
    unequal_share = sums.unequal / max(sums.count, 1)
    return Measure(
        unequal_share if is_discrete(reference) else sums.relative_l2(),
        sums.largest,
        sums.sqnr_db(),
        sums.cosine(),
        sums.nonfinite,
        sums.reference_nonfinite,
        flip_rate(reference, other),
        math.sqrt(sums.difference),
        math.sqrt(sums.left),
        sums.count,
        row_median(reference, other) if rows else None,
    )


def worst(one: Measure, other: Measure) -> Measure:
    """The worse of two batches, figure by figure. Counts of elements add up."""
    flips = [rate for rate in (one.flip_rate, other.flip_rate) if rate is not None]
    medians = [each for each in (one.row_median, other.row_median) if each is not None]
    return Measure(
        max(one.relative_l2, other.relative_l2),
        max(one.max_abs, other.max_abs),
        min(one.sqnr_db, other.sqnr_db),
        min(one.cosine, other.cosine),
        one.nonfinite + other.nonfinite,
        one.reference_nonfinite + other.reference_nonfinite,
        max(flips) if flips else None,
        max(one.difference_l2, other.difference_l2),
        max(one.reference_l2, other.reference_l2),
        one.count + other.count,
        max(medians) if medians else None,
    )


def flip_rate(reference: Tensor, other: Tensor) -> float | None:
    """Share of rows whose largest element is another one; None where the last dimension is no choice of classes: one
    of four is an image's width."""
    if not 2 <= reference.ndim <= 3 or reference.shape[-1] < 2 or reference.numel() == 0:
        return None
    if is_discrete(reference) or reference.is_complex():
        return None
    return float((reference.argmax(-1) != other.argmax(-1)).double().mean())


def row_median(reference: Tensor, other: Tensor) -> float | None:
    """Median over rows (tokens: all dimensions but the last) of ‖other − reference‖ / ‖reference‖, of rows that are
    finite in the reference and not zero; None where there are fewer than two, or the values are discrete."""
    if reference.ndim < 2 or reference.shape[-1] < 2 or is_discrete(reference) or reference.is_complex():
        return None
    wide = reference.shape[-1]
    left, right = _flat(reference).reshape(-1, wide), _flat(other).reshape(-1, wide)
    step, found = max(1, _PIECE // wide), []
    for start in range(0, left.shape[0], step):
        a, b = left[start : start + step].double(), right[start : start + step].double()
        size = torch.linalg.vector_norm(a, dim=1)
        error = (torch.linalg.vector_norm(b - a, dim=1) / size).nan_to_num(math.inf, math.inf)
        found.append(error[torch.isfinite(size) & (size > 0)])
    errors = torch.cat(found) if found else left.new_empty(0)
    return float(errors.median()) if errors.numel() > 1 else None


def gradient_figure(found: Measure, largest: float) -> tuple[float, bool]:
    """The error of one parameter's gradient, and whether that gradient is zero but for rounding.

    Then there is no relative error worth the name (a bias before batch norm, the keys' bias in attention), and the
    error is taken relative to `largest`, the largest root mean square of any gradient of the model. Measured on a BERT
    and a convolutional net in fp32: true zeros reach 2^-21 of the largest, the smallest others are 2^-15.
    """
    size = max(found.count, 1) ** 0.5
    if not math.isfinite(found.relative_l2) or found.reference_l2 / size > ZERO_GRADIENT * largest:
        return found.relative_l2, False
    return found.difference_l2 / size / (largest or 1.0), True


def largest_rms(tensors: Iterable[Tensor]) -> float:
    """Largest root mean square of several tensors; non-finite ones do not count."""
    norms = (
        (torch.linalg.vector_norm(_flat(each), dtype=torch.float64), each.numel()) for each in tensors if each.numel()
    )
    found = [float(norm) / count**0.5 for norm, count in norms]
    return max((value for value in found if math.isfinite(value)), default=0.0)


def is_discrete(tensor: Tensor) -> bool:
    """Integers and bools: equal or not, there is no small difference."""
    return not (tensor.is_floating_point() or tensor.is_complex())


class _Sums:
    """Running sums over the pieces of one pair."""

    def __init__(self) -> None:
        self.left = self.right = self.dot = self.difference = self.largest = 0.0
        self.count = self.unequal = self.nonfinite = self.reference_nonfinite = 0
        self.broken = False

    def add(self, left: Tensor, right: Tensor) -> None:
        self.count += left.numel()
        if is_discrete(left):
            self.unequal += int((left != right).sum())
        a, b = left.double(), right.double()
        # The square of a finite fp32 number is a finite fp64 number: a finite sum has finite terms only.
        if not math.isfinite(float(torch.dot(a, a)) + float(torch.dot(b, b))):
            a, b = self._finite_parts(a, b)
        gap = b - a
        self.left += float(torch.dot(a, a))
        self.right += float(torch.dot(b, b))
        self.dot += float(torch.dot(a, b))
        self.difference += float(torch.dot(gap, gap))
        self.largest = max(self.largest, float(gap.abs_().max()))

    def _finite_parts(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Zero where either is not finite, after taking note of who lost what."""
        keep_left, keep_right = torch.isfinite(left), torch.isfinite(right)
        self.reference_nonfinite += int((~keep_left).sum())
        self.nonfinite += int((~keep_right).sum())
        lost = ~keep_right & (keep_left | (torch.isinf(left) & (left != right)))
        self.broken = self.broken or bool(lost.any())
        both = keep_left & keep_right
        return torch.where(both, left, 0.0), torch.where(both, right, 0.0)

    def relative_l2(self) -> float:
        if self.broken:
            return math.inf
        scale = math.sqrt(self.left) if self.left else 1.0
        return math.sqrt(self.difference) / scale

    def sqnr_db(self) -> float:
        if self.broken:
            return -math.inf
        if self.difference == 0:
            return math.inf
        return 10 * math.log10(self.left / self.difference) if self.left else -math.inf

    def cosine(self) -> float:
        if self.left == 0 or self.right == 0:
            return 1.0 if self.left == self.right else 0.0
        return self.dot / math.sqrt(self.left) / math.sqrt(self.right)


def _flat(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.float()  # the eight-bit formats have no arithmetic of their own
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1)


def _apart(reference: Tensor, other: Tensor) -> Measure:
    lost = [int((~torch.isfinite(side)).sum()) for side in (other, reference)]
    return Measure(math.inf, math.inf, -math.inf, 0.0, lost[0], lost[1], None, math.inf, 0.0, reference.numel())
