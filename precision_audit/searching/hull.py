"""Plans as points of predicted time and squared error, and the lower hull of them.

Takes `Solved` plans; gives slopes and corners. Squared errors, because shares add up and errors do not. Never makes a
plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from precision_audit.records import Plan

SAME = 1e-9  # relative difference of seconds that is none


@dataclass(frozen=True)
class Solved:
    """One plan with what is predicted of it."""

    plan: Plan
    seconds: float
    error: float
    hopeful: bool

    @property
    def low(self) -> str:
        return self.plan.low

    @property
    def key(self) -> tuple[object, ...]:
        """What tells one plan from another."""
        return (self.plan.low, self.plan.formats, tuple((swap.op, swap.recipe) for swap in self.plan.swaps))


def shown(seconds: float) -> float:
    """Seconds to five digits: plans within one part in ten thousand are equally fast, and what tells them apart is
    their error. A cost model that is right within tenths knows nothing of the digits behind."""
    return float(f"{seconds:.5g}")


def lower_hull(solved: Iterable[Solved]) -> list[Solved]:
    """Corners of the lower hull of time against squared error, fastest first."""
    best: dict[float, Solved] = {}
    for each in sorted(solved, key=lambda each: (each.seconds, each.error)):
        if not best or each.error < min(point.error for point in best.values()):
            best[each.seconds] = each
    hull: list[Solved] = []
    for each in best.values():
        while len(hull) > 1 and not _turns(hull[-2], hull[-1], each):
            hull.pop()
        hull.append(each)
    return hull


def _turns(one: Solved, other: Solved, third: Solved) -> bool:
    """Whether the middle of three plans lies below the line through the others."""
    left = (other.error**2 - one.error**2) * (third.seconds - one.seconds)
    return left < (third.error**2 - one.error**2) * (other.seconds - one.seconds)


def slope(bad: Solved, good: Solved) -> float | None:
    """Seconds that a unit of squared error is worth between the two; None where neither is the better in anything."""
    gap = bad.error**2 - good.error**2
    if not (math.isfinite(gap) and gap > 0 and good.seconds > bad.seconds * (1 + SAME)):
        return None
    return (good.seconds - bad.seconds) / gap


def below(new: Solved, bad: Solved, good: Solved, lam: float) -> bool:
    """Whether the plan lies below the line through two others whose slope is `lam`."""
    return new.seconds + lam * new.error**2 < (bad.seconds + lam * bad.error**2) * (1 - SAME)


def area(bad: Solved, good: Solved) -> float:
    """Of the rectangle between two corners: how much the hull may hide there."""
    return (good.seconds - bad.seconds) * (bad.error**2 - good.error**2)
