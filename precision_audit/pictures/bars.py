"""What the bars of a histogram stand for, by arithmetic alone.

Takes the `Range`s of any number of values; gives `Bars`, shares in percent of all their elements together. Must never
draw, and never lose an element: zeros, NaN and infinities have bars of their own, so that all shares sum to 100.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from precision_audit.records import InputError, Range


@dataclass(frozen=True, slots=True)
class Bars:
    """Shares in percent of `count` elements. `bins`: (e, share of 2**e <= magnitude < 2**(e+1)), ascending."""

    count: int
    zeros: float
    lost: float  # NaN or infinite
    bins: tuple[tuple[int, float], ...]

    @property
    def peak(self) -> int:
        """The power of two with the highest bar; the lowest of several."""
        return max(self.bins, key=lambda bin: (bin[1], -bin[0]))[0]

    def between(self, low: float, high: float) -> float:
        """Percent of the elements with 2**low <= magnitude < 2**high; both whole numbers or infinite."""
        return math.fsum(share for power, share in self.bins if low <= power < high)


def bars(ranges: Range | Iterable[Range], shift: int = 0) -> Bars:
    """The bars of all values together, magnitudes multiplied by 2**shift (a loss scale, before any rounding)."""
    ranges = (ranges,) if isinstance(ranges, Range) else tuple(ranges)
    count = sum(each.count for each in ranges)
    if not count:
        return Bars(0, 0.0, 0.0, ())
    powers: Counter[int] = Counter()
    for each in ranges:
        powers.update(dict(each.histogram))
    return Bars(
        count=count,
        zeros=100 * sum(each.zeros for each in ranges) / count,
        lost=100 * sum(each.nan + each.infinite for each in ranges) / count,
        bins=tuple((power + shift, 100 * powers[power] / count) for power in sorted(powers) if powers[power]),
    )


def shift_of(scale: float | None) -> int:
    """k of a loss scale 2**k, 0 for none. Other scales would move elements across the edges of bins."""
    if scale is None:
        return 0
    fraction, exponent = math.frexp(scale) if math.isfinite(scale) and scale > 0 else (0.0, 0)
    if fraction != 0.5:
        raise InputError(f"scale={scale!r}: the bars are powers of two; expected a power of two such as 1024.0")
    return exponent - 1
