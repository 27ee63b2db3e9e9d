"""The cheapest plan that is measured to keep to every budget, in five runs of a converted model at most.

Takes `Evidence` and limits; gives a `Solution`. Each low format is a *line* of its own (`lines.py`), which predicts and
learns from what is measured; the next plan to be run is the fastest that any line predicts to be within the budgets.
Where no line has one that is faster than the best one measured, the runs that are left go to plans that the predictions
rule out by a little: first without the swaps that failed, but with the others taken at their word again, then beyond
the budget by as much as predictions are usually off. The captured model itself always counts: it needs no run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_audit.records import InputError, Trial
from precision_audit.rewrite import rewrite
from precision_audit.rewrite.converted import Converted
from precision_audit.searching import emulated, running
from precision_audit.searching.budgets import Limit
from precision_audit.searching.evidence import Base, Evidence
from precision_audit.searching.frontier import Planner, Solved
from precision_audit.searching.hull import shown
from precision_audit.searching.lines import STAGES, Learned, Line, Stage

RUNS = 5  # of converted models, after the evidence


@dataclass(frozen=True)
class Judged:
    """A plan that was run (or the captured model, that was not), and how much of each budget it uses."""

    solved: Solved
    base: Base
    run: running.Run | None
    usages: tuple[float, ...]

    @property
    def usage(self) -> float:
        return max(self.usages)


@dataclass
class Solution:
    """`best` keeps to all budgets, or comes nearest where none does; `high` is the captured model."""

    best: Judged
    high: Judged
    met: bool
    limits: tuple[Limit, ...]
    metric: Callable[..., Any] | None
    trials: list[Trial] = field(default_factory=list)
    runs: int = 0
    fastest_met: bool = False  # the fastest plan there is keeps to the budget


def solve(evidence: Evidence, limits: tuple[Limit, ...], metric: Callable[..., Any] | None) -> Solution:
    """Propose, run, learn; see above."""
    running.check(limits, evidence.reference)
    origin = [_origin(evidence, each, metric) for each in limits]
    learned = Learned()  # of swaps, whose error is much the same beside any low format
    lines = [line for base in evidence.bases for line in _lines(evidence, base, limits, learned)]
    high = _captured(evidence, limits, lines)
    found = Solution(high, high, high.usage <= 1, limits, metric)
    seen: set[tuple[object, ...]] = set()
    stages = iter(STAGES)
    stage = next(stages, None)
    while found.runs < RUNS and stage is not None:
        proposed = _proposed(lines, stage, found, seen)
        if proposed is None:
            stage = next(stages, None)
            continue
        line, solved = proposed
        seen.add(solved.key)
        judged = _judge(evidence, line.base, line.as_predicted(solved), found, origin)
        line.learn(solved, judged.usages, stage)
        if judged.usage <= 1 or (not found.met and judged.usage < found.best.usage):
            found.met, found.best = judged.usage <= 1, judged
    if not found.met and not found.runs:  # not even the safest plan is predicted to fit: what is in reach is measured
        found.best = _judge(evidence, high.base, high.solved, found, origin)
        found.met = found.best.usage <= 1
    least = min(line.fastest().seconds for line in lines)
    reached = shown(found.best.solved.seconds) <= shown(least)
    found.fastest_met = found.met and reached and found.best.run is not None
    return found


def _proposed(
    lines: Sequence[Line], stage: Stage, found: Solution, seen: set[tuple[object, ...]]
) -> tuple[Line, Solved] | None:
    """The fastest that was not run, of those that are faster than the best; the most exact of those as fast, times
    taken as a report prints them."""
    ready = [(line, line.proposal(stage)) for line in lines if line.alive]
    better = [
        (line, solved) for line, solved in ready
        if solved is not None and solved.key not in seen
        and (not found.met or shown(solved.seconds) < shown(found.best.solved.seconds))
    ]  # fmt: skip
    if not better:
        return None
    fastest = min(shown(solved.seconds) for _, solved in better)
    as_fast = [(line, solved) for line, solved in better if shown(solved.seconds) == fastest]
    return min(as_fast, key=lambda each: each[1].error)


def _origin(evidence: Evidence, limit: Limit, metric: Callable[..., Any] | None) -> float:
    """The reference's own number, 0.0 where the limit is no metric."""
    if metric is None or not limit.of_metric:
        return 0.0
    found = evidence.reference.metric(metric)
    if limit.relative and not found:
        raise InputError(
            f"budget {limit.name}: a percentage is of the model's own metric, which is 0; expected a number without %, "
            f"such as {limit.name}={limit.bound:.4g}"
        )
    return found


def converted(evidence: Evidence, solved: Solved) -> Converted:
    """The module of a plan, swaps that cannot be built here emulated."""
    return rewrite(
        evidence.captures, {evidence.mode: solved.plan},
        signature=evidence.signature, missing=evidence.missing, build=emulated.build,
    ).train(evidence.mode == "training")  # fmt: skip


def planner(evidence: Evidence, base: Base, hopeful: bool) -> Planner:
    """Of one base, made once: plans do not depend on the budget."""
    key = (base.policy.low, "hopeful" if hopeful else "")
    if key not in evidence.known:
        evidence.known[key] = Planner(evidence.graph, base, evidence.hardware, hopeful)
    found: Planner = evidence.known[key]
    return found


def _lines(evidence: Evidence, base: Base, limits: Sequence[Limit], learned: Learned) -> list[Line]:
    """Slopes start where a limit is a relative error: predictions add up over the outputs, limits hold of each."""
    outputs = math.sqrt(max(1, len(evidence.reference.names())))
    slopes = [1.0 / (limit.error * outputs) if limit.error else 0.0 for limit in limits]
    kinds = (False, True) if base.unknown else (False,)
    return [
        Line(evidence.graph, evidence.hardware, base, planner(evidence, base, hopeful), slopes[:], hopeful, learned)
        for hopeful in kinds
    ]


def _captured(evidence: Evidence, limits: Sequence[Limit], lines: Sequence[Line]) -> Judged:
    """The plan with everything high that may be. Where that is the captured model, what it measures is known."""
    line = min(lines, key=lambda each: each.safest().error)
    solved = line.safest()
    noise = evidence.reference.noise
    usages = tuple(
        limit.usage(evidence.reference.alike(limit.name, limit.function)) if limit.function is not None
        else noise / limit.error if limit.error else 0.0
        for limit in limits
    )  # fmt: skip
    if solved.error > 0:  # pins of the policy leave something low: it must be run like any other
        usages = (math.inf,) * len(limits)
    return Judged(solved, line.base, None, usages)


def _judge(evidence: Evidence, base: Base, solved: Solved, found: Solution, origin: Sequence[float]) -> Judged:
    found.runs += 1
    run = running.tried(converted(evidence, solved), found.limits, evidence.reference, found.metric)
    pairs = zip(found.limits, run.values, origin, strict=True)
    usages = tuple(math.inf if run.raised else limit.usage(value, start) for limit, value, start in pairs)
    measured = tuple((limit.name, value) for limit, value in zip(found.limits, run.values, strict=True))
    found.trials.append(Trial(solved.low, solved.seconds, solved.error, max(usages), measured, run.raised))
    return Judged(solved, base, run, usages)
