"""What a search for the cheapest plan within a budget found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from precision_audit.records.graph import Source

# met: the plan was run and keeps to the budget. nothing low: only the captured model does, no op runs low. not met: no
# plan that the space allows does; the one that came nearest is given.
Outcome = Literal["met", "nothing low", "not met"]


@dataclass(frozen=True, slots=True)
class Bound:
    """One budget: what was asked and what the found plan measured, over all batches. `usage` is the part of the budget
    that is used up: above 1 it is not kept."""

    name: str
    stated: str  # "relative_l2 <= 0.01"
    limit: float
    measured: float
    usage: float
    reference: float = 0.0  # the reference's own metric, where the budget is a metric


@dataclass(frozen=True, slots=True)
class Point:
    """One plan of the frontier: what it is predicted to take and to err by, and what it is."""

    seconds: float
    error: float  # predicted relative L2, all outputs together
    low: str
    ops_low: int  # of `ops` that could
    ops: int
    swaps: tuple[tuple[str, int], ...]  # recipe and number of linears
    casts: int
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a converted model over the given batches."""

    low: str
    seconds: float  # predicted
    predicted_error: float
    usage: float  # measured, of the tightest budget
    measured: tuple[tuple[str, float], ...]
    raised: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """An op of the found plan that stays high, or a linear that is swapped, and why. `error`: what running it low by
    itself would add, or what the swap adds, as relative L2 of the outputs; `seconds`: what it would save, or saves."""

    op: str
    module: str
    format: str
    why: str
    source: Source | None = None
    error: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Search:
    """`runs` counts runs of converted models after the evidence; `frontier` is the lower hull of predicted time against
    predicted error over all plans that were looked at, fastest first."""

    outcome: Outcome
    bounds: tuple[Bound, ...]
    runs: int
    seconds: float
    seconds_high: float
    predicted_error: float
    frontier: tuple[Point, ...]
    trials: tuple[Trial, ...]
    high: tuple[Place, ...]
    swapped: tuple[Place, ...]
    together: tuple[tuple[str, ...], ...] = ()  # ops that were given the same format
    emulated: tuple[str, ...] = ()  # recipes whose modules were emulated
    notes: tuple[str, ...] = ()
