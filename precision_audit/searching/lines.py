"""One low format in a search: what it predicts of each budget, and what a run of one of its plans teaches it.

Takes a `Base` with its planner; gives plans to be run. What a run measures corrects the kind of source that most of
the predicted error was from. The swaps of one recipe are quantised alike, so their shares are all scaled by what was
measured over what was predicted (`Learned`, which the lines of a search have in common: quantising a linear errs much
the same beside any low format). Everything else goes into the slopes, measured over predicted for every limit; that is
also how a limit of which nothing can be predicted (flips, the user's number) gets one, after the fastest plan of all
was tried against it.

A line in which ops of unknown error may run low is hopeful: it is given up as soon as it is wrong once. Never runs a
model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from precision_audit.analyse.deltas import swap_source
from precision_audit.analyse.predicted_error import predicted_error
from precision_audit.records import Graph, Hardware
from precision_audit.searching.alternatives import scheme_of
from precision_audit.searching.evidence import Base
from precision_audit.searching.frontier import Planner, Solved

# learned: predictions as corrected. spared: swaps that failed are out, the others count as predicted at first.
# beyond: as learned, but for the tolerance below.
Stage = Literal["learned", "spared", "beyond"]
STAGES: tuple[Stage, ...] = ("learned", "spared", "beyond")

_MARGIN = 0.97  # of the budget, once a prediction was too low: the next one is made to fit with some room
_LOST = 64.0  # what a run that is not finite is taken to have used of its budget
_BEYOND = 1.25  # predictions of one plan are off by about this much (six probes and one draw of the rounding)
_BLAMED = 0.5  # part of the swaps' predicted squared error that the swaps ruled out after a failure account for


@dataclass
class Learned:
    """`factors` by scheme on the squared error of swaps; `failed` are swaps (op and recipe) of plans that failed."""

    factors: dict[str, float] = field(default_factory=dict)
    failed: set[tuple[str, str]] = field(default_factory=set)


@dataclass
class Line:
    """`slopes`: what each limit uses per unit of predicted error, 0 where nothing is known yet."""

    graph: Graph
    hardware: Hardware
    base: Base
    planner: Planner
    slopes: list[float]
    hopeful: bool
    learned: Learned
    alive: bool = True
    margin: float = 1.0
    _made: dict[object, Planner] = field(default_factory=dict)

    def proposal(self, stage: Stage) -> Solved | None:
        """The fastest plan that is predicted to keep to every budget; None where there is none."""
        steepest = max(self.slopes)
        target = self.margin / steepest if steepest > 0 else math.inf
        if stage == "spared":
            return self._spared().cheapest(target) if self.learned.failed else None
        return self._corrected().cheapest(target * _BEYOND if stage == "beyond" else target)

    def learn(self, solved: Solved, usages: Sequence[float], stage: Stage) -> None:
        """From a plan of this line that was run. Plans of the later stages only say which swaps fail."""
        wrong = max(usages) > 1
        if wrong and self.hopeful:
            self.alive = False
            return
        if wrong:
            self.learned.failed |= self._blamed(solved)
        if stage != "learned":
            return
        if wrong:
            self.margin = _MARGIN
        if solved.error == 0:
            self.alive = self.alive and not wrong  # wrong without any error being predicted: nothing can be trusted
            return
        used = [usage if math.isfinite(usage) else _LOST for usage in usages]
        error = self._learn_of_swaps(solved, used)
        for index, usage in enumerate(used):
            self.slopes[index] = usage / error

    def fastest(self) -> Solved:
        return self.planner.fastest()

    def safest(self) -> Solved:
        return self.planner.safest()

    def as_predicted(self, solved: Solved) -> Solved:
        """The plan with the error that the evidence predicts, whatever was learned since."""
        error = predicted_error(self.base.facts.shares, solved.plan, self.graph)
        predicted = solved.plan.predicted
        assert predicted is not None
        made = replace(solved.plan, predicted=replace(predicted, error_share=error**2))
        return replace(solved, plan=made, error=error)

    def _learn_of_swaps(self, solved: Solved, used: Sequence[float]) -> float:
        """Scale the shares of the plan's recipes where they are most of its error; the error that is then predicted."""
        known = [usage / slope for usage, slope in zip(used, self.slopes, strict=True) if slope > 0]
        shares = self._shares_of(solved)
        swapped = sum(shares.values())
        if not known or swapped <= solved.error**2 / 2:
            return solved.error
        measured = max(known)
        rest = max(solved.error**2 - swapped, 0.0)
        factor = max((measured**2 - rest) / swapped, _MARGIN**2 * measured**2 / solved.error**2 / 4)
        for scheme in {scheme_of(swap) for swap in solved.plan.swaps}:
            self.learned.factors[scheme] = self.learned.factors.get(scheme, 1.0) * factor
        return math.sqrt(rest + factor * swapped)

    def _blamed(self, solved: Solved) -> set[tuple[str, str]]:
        """The swaps with the largest shares, as many as make up a good part of what all of them add."""
        shares = self._shares_of(solved)
        left, found = _BLAMED * sum(shares.values()), set[tuple[str, str]]()
        for key in sorted(shares, key=lambda key: (-shares[key], key)):
            if left <= 0 and found:
                break
            left -= shares[key]
            found.add(key)
        return found

    def _shares_of(self, solved: Solved) -> dict[tuple[str, str], float]:
        """What each swap of a plan adds, as learned."""
        factors, shares = self.learned.factors, self.base.choices.shares
        return {
            (swap.op, swap.recipe): shares.get((swap.op, swap.recipe), 0.0) * factors.get(scheme_of(swap), 1.0)
            for swap in solved.plan.swaps
        }

    def _corrected(self) -> Planner:
        return self._planner(self.learned.factors, frozenset())

    def _spared(self) -> Planner:
        return self._planner({}, frozenset(self.learned.failed))

    def _planner(self, factors: Mapping[str, float], barred: frozenset[tuple[str, str]]) -> Planner:
        if not barred and all(factor == 1.0 for factor in factors.values()):
            return self.planner
        key = (tuple(sorted(factors.items())), barred)
        if key not in self._made:
            base = _without(_scaled(self.base, factors), barred)
            self._made[key] = Planner(self.graph, base, self.hardware, self.hopeful)
        return self._made[key]


def _scaled(base: Base, factors: Mapping[str, float]) -> Base:
    """The base with the shares of swaps scaled by their scheme's factor."""
    by_source: dict[str, float] = {}
    shares = dict(base.choices.shares)
    for key, swaps in base.choices.swaps.items():
        for swap in swaps:
            scheme = scheme_of(swap)
            factor = factors.get(scheme, 1.0)
            by_source[swap_source(key, scheme)] = factor
            shares[key, swap.recipe] = shares.get((key, swap.recipe), 0.0) * factor
    found = tuple(replace(each, share=each.share * by_source.get(each.source, 1.0)) for each in base.facts.shares)
    return replace(base, choices=replace(base.choices, shares=shares), facts=replace(base.facts, shares=found))


def _without(base: Base, barred: frozenset[tuple[str, str]]) -> Base:
    """The base without some swaps; ops that go together lose a recipe together, by what `choosing` asks of groups."""
    swaps = {
        key: tuple(swap for swap in offered if (key, swap.recipe) not in barred)
        for key, offered in base.choices.swaps.items()
    }
    return replace(base, choices=replace(base.choices, swaps={key: left for key, left in swaps.items() if left}))
