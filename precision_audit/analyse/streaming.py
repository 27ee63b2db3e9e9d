"""Counters of one value over all batches, and the `Range` they give.

Takes the counts of one tensor per batch; keeps extremes and one table row per power of two that occurred, so that
memory depends on no number of batches.
"""

from __future__ import annotations

import math

from precision_audit.analyse.counting import Counts
from precision_audit.records import Basis, Range


class Streamed:
    """Counts of one value, and in which batch what was seen first."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.origin = ""
        self.batch, self.lost_in, self.nan_in = 0, -1, -1

    @property
    def fraction(self) -> bool:
        """Whether some number was no integer."""
        return not self.counts.whole

    def add(self, counts: Counts, batch: int, origin: str = "") -> None:
        """`origin` is what `Range.origin` says of this batch."""
        if counts.amax > self.counts.amax:
            self.batch = batch
        if (counts.nan or counts.infinite) and self.lost_in < 0:
            self.lost_in = batch
        if counts.nan and self.nan_in < 0:
            self.nan_in = batch
        self.origin = "nan" if "nan" in (self.origin, origin) else self.origin or origin
        self.counts.merge(counts)

    def range(self, value: str, basis: Basis) -> Range:
        counts = self.counts
        some = counts.amax >= 0
        rows = [(counts.first + i, row) for i, row in enumerate(counts.table.tolist()) if row[0]]
        return Range(
            value=value,
            basis=basis,
            count=counts.count,
            amax=max(counts.amax, 0.0),
            smallest=counts.smallest if math.isfinite(counts.smallest) else 0.0,
            lowest=counts.lowest if some else 0.0,
            highest=counts.highest if some else 0.0,
            zeros=counts.zeros,
            nan=counts.nan,
            infinite=counts.infinite,
            histogram=tuple((exponent, row[0]) for exponent, row in rows),
            whole=counts.whole and some,
            held=tuple(sorted(counts.held)) if some else (),
            batch=self.batch,
            lost_in=self.lost_in,
            negative_infinite=counts.negative_infinite,
            nan_in=self.nan_in,
            origin=self.origin,
            powers=tuple((exponent, row[1]) for exponent, row in rows if row[1]),
            upper=tuple((exponent, _cut(row[2:])) for exponent, row in rows if row[2]),
            splits=tuple(sorted(counts.splits.items())),
        )


def _cut(row: list[int]) -> tuple[int, ...]:
    """Without the zeros at its end."""
    while row and not row[-1]:
        row = row[:-1]
    return tuple(row)
