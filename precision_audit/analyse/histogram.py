"""Which share of a value's elements a format loses: beyond its range, or to zero.

Takes a `Range` (all batches) or a tensor, and a format: a row of `formats.FORMATS`, one made by `formats.custom`, or
the name of either (`fp16`, `e5m3b12`); gives a `Fit`. Shares are of all elements seen, NaN and infinities included in
the whole but in neither share.

    overflow   magnitude rounds beyond the largest number, to nearest, ties to even: from the largest plus half a step
    underflow  not zero, rounds to zero: up to half the smallest number, a tie included, since zero is even
    posit, scale   have no zero to round to and posits no infinity: overflow is what is clipped to the largest number,
               underflow what is raised to the smallest
    block      elements share a scale. Of a tensor the shares are exact, block by block. A histogram knows no blocks, so
               `shares` takes one scale for all that was seen. A block's own scale is smaller or equal, so fewer
               elements underflow there; where scales are powers of two more may be clipped, since each block has a
               largest element of its own.

A histogram by powers of two cannot split the bin that holds a threshold. `Range` therefore has three finer counts:
exact powers of two (posits, and ties at half the smallest number), the elements from 2**e * (2 - 2**-j) for j up to 7
(the overflow thresholds of all formats with up to 6 mantissa bits whose mantissa may be all ones), and `splits` at the
thresholds of all other rows of the table (`points`). So shares are exact for every row but the block formats, and for
formats of the user's own with up to 6 mantissa bits; where a count cannot be had, the whole bin counts as lost and
`exact` is false.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from precision_audit.formats import FORMATS, Format, named
from precision_audit.records import Range

_RESOLVED = 7  # ones at the head of a mantissa up to which `Range.upper` counts


@dataclass(frozen=True, slots=True)
class Fit:
    """How numbers fit a format. Not `exact`: the shares are upper bounds. `note` says what was assumed."""

    overflow: float
    underflow: float
    exact: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Magnitudes from `overflow` on are beyond a format's range; those up to `underflow` vanish."""

    overflow: float
    underflow: float


def shares(value: Range, format: str | Format) -> Fit:
    """Shares of all elements of a value, over all batches."""
    row = _row(format)
    if not value.count:
        return Fit(0.0, 0.0)
    if row.kind == "block":
        return _with_one_scale(value, row)
    return _fit(value, limits(row), "")


def shares_of(tensor: Tensor, format: str | Format) -> Fit:
    """Shares of one tensor, exactly; blocks of a block format lie along its last axis."""
    row = _row(format)
    numbers = tensor.detach().double().abs()
    if not numbers.numel():
        return Fit(0.0, 0.0)
    if row.kind == "block":
        element = limits(_row(row.element), scaled=True)
        scales = _block_scales(torch.where(torch.isfinite(numbers), numbers, 0.0), row)
        numbers = numbers / scales
    else:
        element = limits(row)
    lost = (numbers >= element.overflow) & torch.isfinite(numbers)
    vanished = (numbers <= element.underflow) & (tensor != 0)
    return Fit(float(lost.double().mean()), float(vanished.double().mean()))


def limits(format: Format, scaled: bool = False) -> Limits:
    """Where a format's range ends. `scaled`: codes of int8 are read as code / 64, as block formats do."""
    largest = format.max_finite
    if format.kind == "integer":
        unit = 1 / 64 if scaled else 1.0
        return Limits((largest + 0.5) * unit, 0.5 * unit)
    if format.kind == "posit" or format.min_subnormal is None:
        smallest = format.min_subnormal or format.min_normal or 0.0
        beyond = 1.5 * largest if format.kind == "scale" else math.nextafter(largest, math.inf)
        return Limits(beyond, math.nextafter(smallest, 0.0))
    assert format.mantissa_bits is not None
    return Limits(_rounds_beyond(format, largest), format.min_subnormal / 2)


def points(formats: Iterable[Format] = tuple(FORMATS.values())) -> tuple[float, ...]:
    """Overflow thresholds that a `Range` counts apart because its other counts do not tell them."""
    unscaled = (limits(row).overflow for row in formats if row.kind != "block")
    return tuple(sorted({limit for limit in unscaled if math.isfinite(limit) and not _is_resolved(limit)}))


def _row(format: str | Format) -> Format:
    return format if isinstance(format, Format) else named(format)


def _rounds_beyond(format: Format, largest: float) -> float:
    """The smallest fp64 magnitude that rounds beyond the largest number. The tie goes to the even code."""
    assert format.mantissa_bits is not None and format.bias is not None
    exponent = math.frexp(largest)[1] - 1
    step = 2.0 ** (exponent - format.mantissa_bits)
    code = round(largest / step) if format.mantissa_bits else exponent + format.bias
    tie = largest + step / 2  # for fp64 itself this is rounded back: nothing is beyond
    if tie == largest:
        return math.inf
    return tie if code % 2 else math.nextafter(tie, math.inf)


def _is_resolved(limit: float) -> bool:
    fraction = math.frexp(limit)[0] * 2
    power = fraction == 1 or math.nextafter(limit, 0.0) == 2.0 ** (math.frexp(limit)[1] - 1)
    return power or any(fraction == 2 - 2.0**-ones for ones in range(1, _RESOLVED + 1))


def _fit(value: Range, limit: Limits, note: str) -> Fit:
    over, sure = _at_least(value, limit.overflow)
    under, also = _at_most(value, limit.underflow)
    return Fit(over / value.count, under / value.count, sure and also, note)


def _at_least(value: Range, limit: float) -> tuple[int, bool]:
    """Elements of magnitude `limit` or more, and whether that is exact or a bound."""
    if value.amax < limit:
        return 0, True
    fraction, exponent = math.frexp(limit)
    exponent, fraction = exponent - 1, fraction * 2
    above = sum(number for power, number in value.histogram if power > exponent)
    inside = dict(value.histogram).get(exponent, 0)
    if not inside or fraction == 1 or value.smallest >= limit:
        return above + inside, True
    splits = dict(value.splits)
    if limit in splits:
        return above + splits[limit], True
    if math.nextafter(limit, 0.0) == 2.0**exponent:
        return above + inside - dict(value.powers).get(exponent, 0), True
    upper = dict(value.upper).get(exponent, ())
    ones = int(-math.log2(2 - fraction))  # the most whose threshold is not above the limit
    known = (inside, *upper, *(0,) * _RESOLVED)[min(ones, _RESOLVED)]
    return above + known, known == 0 or fraction == 2 - 2.0 ** -min(ones, _RESOLVED)


def _at_most(value: Range, limit: float) -> tuple[int, bool]:
    """Elements above zero of magnitude `limit` or less."""
    if not value.smallest or value.smallest > limit or limit == 0:
        return 0, True
    if value.amax <= limit:
        return sum(number for _, number in value.histogram), True
    over, sure = _at_least(value, math.nextafter(limit, math.inf))
    if sure:
        return sum(number for _, number in value.histogram) - over, True
    exponent = math.frexp(limit)[1] - 1
    return sum(number for power, number in value.histogram if power <= exponent), False


def _with_one_scale(value: Range, row: Format) -> Fit:
    """Block formats with a single scale for all that was seen."""
    note = f"one scale for all elements instead of one for each block of {row.block}"
    if not value.amax:
        return Fit(0.0, 0.0, True, note)
    element = limits(_row(row.element), scaled=True)
    scale = _scale(value.amax, row)
    return _fit(value, Limits(element.overflow * scale, element.underflow * scale), note)


def _scale(amax: float, row: Format) -> float:
    """The scale of elements up to `amax`: a power of two for MX formats, else amax over the element's largest number.

    MX (OCP v1.0): the largest power of two not above amax, over that of the element format; its 8 bits hold 2**-127 to
    2**127."""
    largest = _element_max(row)
    if row.scale == "e8m0":
        exponent = math.frexp(amax)[1] - math.frexp(largest)[1]
        return float(2.0 ** max(-127, min(127, exponent)))
    return amax / largest


def _element_max(row: Format) -> float:
    return 127 / 64 if row.element == "int8" else _row(row.element).max_finite


def _block_scales(numbers: Tensor, row: Format) -> Tensor:
    """The scale of every element's block, 1 for a block of zeros."""
    flat = numbers.reshape(-1, numbers.shape[-1]) if numbers.dim() else numbers.reshape(1, 1)
    if row.block == "tensor":
        amax = flat.amax().expand_as(flat)
    else:
        length = {"row or column": flat.shape[1], "1x128, weights 128x128": 128}.get(row.block) or int(row.block)
        blocks = torch.nn.functional.pad(flat, (0, -flat.shape[1] % length)).reshape(len(flat), -1, length)
        amax = blocks.amax(-1).repeat_interleave(length, 1)[:, : flat.shape[1]]
    largest = _element_max(row)
    if row.scale == "e8m0":
        exponent = torch.frexp(amax)[1] - math.frexp(largest)[1]
        scales = torch.ldexp(torch.ones_like(amax), exponent.clamp(-127, 127))
    elif row.scale == "fp8_e4m3fn":  # a second scale in fp32 for the whole tensor keeps the first in its range
        tensor_scale = max(float(amax.amax()) / (largest * _row(row.scale).max_finite), 2.0**-149)
        rounded = (amax / largest / tensor_scale).float().to(torch.float8_e4m3fn).double()
        scales = rounded.clamp(min=2.0**-9) * tensor_scale
    else:
        scales = amax / largest
    return torch.where(amax > 0, scales, 1.0).reshape(numbers.shape)
