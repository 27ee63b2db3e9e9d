"""The cheapest plan that is measured to keep to every budget, in five runs of a converted model at most.

Takes `Evidence` and limits; gives a `Solution`. Each low format is a *line* of its own; the next plan to be run is the
fastest that any line predicts to be within the budgets. What a run measures corrects its line's prediction: measured
over predicted for every limit, which is also how a limit of which nothing can be predicted (flips, the user's number)
gets one, after the fastest plan of all was tried against it. It ends when no line has a plan that is faster than the
best one measured, or when the runs are used up. The captured model itself always counts: it needs no run.

A line in which ops of unknown error may run low is hopeful: it is given up as soon as it is wrong once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_audit.records import Trial
from precision_audit.rewrite import rewrite
from precision_audit.rewrite.converted import Converted
from precision_audit.searching import emulated, running
from precision_audit.searching.budgets import OF_METRIC, Limit
from precision_audit.searching.evidence import Base, Evidence
from precision_audit.searching.frontier import Planner, Solved

RUNS = 5  # of converted models, after the evidence
_MARGIN = 0.97  # of the budget, once a prediction was too low: the next one is made to fit with some room
_LOST = 64.0  # what a run that is not finite is taken to have used of its budget
_FASTER = 1 - 1e-6  # a plan that saves less is not worth a run


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


@dataclass
class _Line:
    """One low format, and what each limit uses per unit of predicted error there, once that is known."""

    base: Base
    planner: Planner
    slopes: list[float]
    hopeful: bool
    alive: bool = True
    margin: float = 1.0

    def proposal(self) -> Solved | None:
        steepest = max(self.slopes)
        return self.planner.cheapest(self.margin / steepest if steepest > 0 else math.inf)

    def learn(self, solved: Solved, usages: Sequence[float]) -> None:
        wrong = max(usages) > 1
        if wrong and self.hopeful:
            self.alive = False
            return
        if wrong:
            self.margin = _MARGIN
        for index, usage in enumerate(usages):
            if solved.error > 0:
                used = usage if math.isfinite(usage) else max(_LOST, self.slopes[index] * solved.error * _LOST)
                self.slopes[index] = used / solved.error
            elif usage > 1:  # wrong without any error being predicted: nothing here can be trusted
                self.alive = False


def solve(evidence: Evidence, limits: tuple[Limit, ...], metric: Callable[..., Any] | None) -> Solution:
    """Propose, run, learn; see above."""
    running.check(limits, evidence.reference)
    origin = [evidence.reference.metric(metric) if metric and each.name in OF_METRIC else 0.0 for each in limits]
    lines = [line for base in evidence.bases for line in _lines(evidence, base, limits)]
    high = _captured(evidence, limits, lines)
    found = Solution(high, high, high.usage <= 1, limits, metric)
    seen: set[tuple[object, ...]] = set()
    while found.runs < RUNS:
        ready = [(line, line.proposal()) for line in lines if line.alive]
        better = [
            (line, solved) for line, solved in ready
            if solved is not None and solved.key not in seen
            and (not found.met or solved.seconds < found.best.solved.seconds * _FASTER)
        ]  # fmt: skip
        if not better:
            break
        fastest = min(solved.seconds for _, solved in better)
        as_fast = [(line, solved) for line, solved in better if solved.seconds <= fastest / _FASTER]
        line, solved = min(as_fast, key=lambda each: each[1].error)
        seen.add(solved.key)
        judged = _judge(evidence, line.base, solved, found, origin)
        line.learn(solved, judged.usages)
        if judged.usage <= 1 or (not found.met and judged.usage < found.best.usage):
            found.met, found.best = judged.usage <= 1, judged
    if (
        not found.met and not found.runs
    ):  # not even the safest plan is predicted to fit: what is within reach is measured
        base, solved = high.base, high.solved
        found.best = _judge(evidence, base, solved, found, origin)
        found.met = found.best.usage <= 1
    least = min(line.planner.fastest().seconds for line in lines)
    found.fastest_met = found.met and found.best.solved.seconds <= least / _FASTER and found.best.run is not None
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


def _lines(evidence: Evidence, base: Base, limits: Sequence[Limit]) -> list[_Line]:
    """Slopes start where a limit is a relative error: predictions add up over the outputs, limits hold of each."""
    outputs = math.sqrt(max(1, len(evidence.reference.names())))
    slopes = [1.0 / (limit.error * outputs) if limit.error else 0.0 for limit in limits]
    kinds = (False, True) if base.unknown else (False,)
    return [_Line(base, planner(evidence, base, hopeful), list(slopes), hopeful) for hopeful in kinds]


def _captured(evidence: Evidence, limits: Sequence[Limit], lines: Sequence[_Line]) -> Judged:
    """The plan with everything high that may be. Where that is the captured model, what it measures is known."""
    line = min(lines, key=lambda each: each.planner.safest().error)
    solved = line.planner.safest()
    noise = evidence.reference.noise
    usages = tuple(noise / limit.error if limit.error else 0.0 for limit in limits)
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
