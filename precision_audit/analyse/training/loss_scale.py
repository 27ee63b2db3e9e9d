"""By which power of two the loss may be multiplied so that its gradients fit a format.

Takes the ranges of gradients, unscaled, and a format; gives a `LossScale`, or None where every gradient is zero. Looks
at histograms only: whoever calls decides which gradients are held in the format.

    matters      a gradient of a tensor counts unless it is below an eighth of the format's smallest number (2**-27 in
                 fp16) and all that are so small carry less than a thousandth of the tensor's sum of squares. The eighth
                 is what Micikevicius et al. (Mixed Precision Training, 2018) found of SSD: gradients below 2**-27 could
                 be dropped, those from 2**-27 to 2**-24 could not, so that a scale of 8 was enough. The sum of squares
                 makes it hold for a model whose loss is small as a whole, too.
    sufficient   the smallest power of two that lifts all that matters to the smallest number or above; 1 if none is
                 needed
    safe         the largest power of two that leaves MARGIN times the largest gradient finite: gradients grow between
                 the steps that were looked at and the next
    recommended  the smallest from `sufficient` on that brings 99 % of the gradients into the normal range, where a
                 format has all its digits, or where that leaves less than HEADROOM to `safe`, 99 % of those that
                 matter; at most `safe` over HEADROOM, unless `sufficient` is more: gradients grow, and a scaler that
                 begins too high skips its first steps

A format with the exponents of fp32 (bf16) needs no scale: what vanishes in it next to vanishes in fp32, too.

NaN and infinities count in no range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from precision_audit.analyse.histogram import shares
from precision_audit.formats import FORMATS, Format
from precision_audit.records import LossScale, Range
from precision_audit.verify.measures import ZERO_GRADIENT

MARGIN = 2.0
HEADROOM = 2.0**4
NORMAL_SHARE = 0.99
# A sum that is zero but for rounding in fp32 reached 2^-35 of the largest, a branch scaled by 1e-6 no less than 2^-22.
_IDLE = 2.0**-28
_CARRIED = 1e-3  # of a tensor's sum of squares
_LARGEST = 2.0**126  # a loss times more than this is itself infinite in fp32


@dataclass(frozen=True, slots=True)
class Bands:
    """Shares of the gradients that are not zero, by what becomes of them without a scale: `dropped` below an eighth of
    the format's smallest number, `lost` from there to the smallest, `held` from there on."""

    dropped: float
    lost: float
    held: float


def loss_scale(gradients: Sequence[Range], format: Format) -> LossScale | None:
    """The scales, and the gradients that decide them."""
    found = [each for each in gradients if each.amax]
    if not found:
        return None
    assert format.min_subnormal is not None and format.min_normal is not None
    least = {each.value: least_that_matters(each, format) for each in found}
    needed = {value: format.min_subnormal / smallest for value, smallest in least.items()}
    if format.exponent_bits == FORMATS["fp32"].exponent_bits:
        needed = dict.fromkeys(needed, 0.0)
    sufficient_for = max(needed, key=lambda value: needed[value])
    sufficient = min(max(needed[sufficient_for], 1.0), _LARGEST)  # below 1 nothing needs to be rescued
    largest = max(found, key=lambda each: each.amax)
    safe = min(2.0 ** math.floor(math.log2(format.max_finite / MARGIN / largest.amax)), _LARGEST)
    recommended = _recommended(found, least, format, sufficient, safe)
    return LossScale(
        format=format.name,
        sufficient=sufficient,
        recommended=recommended,
        safe=safe,
        sufficient_for=sufficient_for,
        safe_for=largest.value,
        margin=MARGIN,
        vanish=vanishing(found, format),
        vanish_scaled=vanishing(found, format, recommended),
        needed=needed[sufficient_for],
    )


def noise(gradients: Sequence[Range]) -> frozenset[str]:
    """Parameters whose gradient is zero but for rounding, which no scale can serve: a bias before batch norm, the keys'
    bias in attention. The bound is that of the verification, relative to the largest gradient."""
    sizes = {each.value: _rms(each) for each in gradients}
    largest = max(sizes.values(), default=0.0)
    return frozenset(value for value, size in sizes.items() if size <= ZERO_GRADIENT * largest)


def idle(gradients: Sequence[Range], activations: Sequence[Range]) -> frozenset[str]:
    """Activations that move the loss by nothing but rounding: gradient times activation, summed over the elements,
    against the largest such sum (a mean that a norm takes away again)."""
    sizes = {each.value: _rms(each) for each in activations}
    moved = {each.value: _rms(each) * sizes.get(each.value, math.inf) * each.count for each in gradients}
    largest = max((size for size in moved.values() if math.isfinite(size)), default=0.0)
    return frozenset(value for value, size in moved.items() if size <= _IDLE * largest)


def _rms(gradient: Range) -> float:
    """Root mean square, within a factor: numbers count as the middle of their power of two."""
    squares = sum(number * (1.5 * 2.0**exponent) ** 2 for exponent, number in gradient.histogram)
    return math.sqrt(squares / gradient.count) if gradient.count else 0.0


def _recommended(
    found: Sequence[Range], least: Mapping[str, float], format: Format, sufficient: float, safe: float
) -> float:
    assert format.min_normal is not None
    for counts in (_summed(found), _summed(_from(each, least[each.value]) for each in found)):
        scale = max(sufficient, format.min_normal / _quantile(counts, 1 - NORMAL_SHARE))
        if scale * HEADROOM <= safe:
            return scale
    return min(max(sufficient, safe / HEADROOM), safe)


def _from(gradient: Range, least: float) -> Range:
    """Without what is smaller."""
    return replace(gradient, histogram=tuple((e, number) for e, number in gradient.histogram if 2.0**e >= least))


def least_that_matters(gradient: Range, format: Format) -> float:
    """Power of two at or below the smallest magnitude of a gradient that must not vanish."""
    assert format.min_subnormal is not None
    top = gradient.histogram[-1][0]
    squares = {exponent: number * 4.0 ** max(exponent - top, -500) for exponent, number in gradient.histogram}
    allowed, carried, least = _CARRIED * sum(squares.values()), 0.0, math.inf
    for exponent, square in squares.items():
        carried += square
        if 2.0**exponent >= format.min_subnormal / 8 or carried > allowed:
            least = 2.0**exponent
            break
    return least


def vanishing(gradients: Iterable[Range], format: Format, scale: float = 1.0) -> float:
    """Share of the gradients, of those that are not zero, which the format rounds to zero. `scale`: a power of two."""
    lost = seen = 0.0
    for each in gradients:
        seen += _nonzero(each)
        lost += shares(scaled(each, scale), format).underflow * each.count
    return lost / seen if seen else 0.0


def bands(gradients: Iterable[Range], format: Format) -> Bands:
    """The three bands of the 2018 paper; in fp16 they end at 2**-27 and 2**-24."""
    assert format.min_subnormal is not None
    smallest = math.frexp(format.min_subnormal)[1] - 1
    counts = _summed(gradients)
    total = sum(counts.values()) or 1
    dropped = sum(number for exponent, number in counts.items() if exponent < smallest - 3)
    lost = sum(number for exponent, number in counts.items() if smallest - 3 <= exponent < smallest)
    return Bands(dropped / total, lost / total, 1 - (dropped + lost) / total if counts else 0.0)


def scaled(gradient: Range, scale: float) -> Range:
    """The range of the gradient times a power of two."""
    if scale == 1:
        return gradient
    shift = math.frexp(scale)[1] - 1
    assert scale == 2.0**shift
    return replace(
        gradient,
        amax=gradient.amax * scale,
        smallest=gradient.smallest * scale,
        lowest=gradient.lowest * scale,
        highest=gradient.highest * scale,
        histogram=tuple((exponent + shift, number) for exponent, number in gradient.histogram),
        powers=tuple((exponent + shift, number) for exponent, number in gradient.powers),
        upper=tuple((exponent + shift, numbers) for exponent, numbers in gradient.upper),
        splits=(),
    )


def _nonzero(gradient: Range) -> int:
    return sum(number for _, number in gradient.histogram)


def _summed(gradients: Iterable[Range]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for each in gradients:
        for exponent, number in each.histogram:
            found[exponent] = found.get(exponent, 0) + number
    return found


def _quantile(counts: Mapping[int, int], share: float) -> float:
    """Power of two below which less than `share` of the elements lie."""
    total, below = sum(counts.values()), 0
    for exponent, number in sorted(counts.items()):
        below += number
        if below > share * total:
            return 2.0**exponent
    return 1.0
