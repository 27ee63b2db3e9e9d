"""Plans of one low format by what error is worth: the lower hull of predicted time against predicted error.

Takes a `Base`; gives `Solved` plans: the cheapest at a weight λ of error, the cheapest whose predicted error meets a
target, and the hull. Never runs a model.

A minimum cut gives the plan that is cheapest at one λ, exactly; over all λ these are the corners of the hull. The
weight is bisected as the hull is built: between two plans the next λ is the slope of the line through them, at which a
plan below that line is found if there is one. So the corners on either side of a target are found in a few cuts, and
no tolerance of λ has to be chosen. Of plans whose times print alike the one with the least error is taken.

Between two corners the budget is not used up. There the units in which the two differ (an op, or ops that go together)
are taken over from the cheaper plan, least error per second first, as far as the target allows, and then swaps that
neither has; each such plan is cut anew with those units forced, so that casts and everything else fit. Ops that pay
only together, because of the casts between them, are found from the other end: the fastest plan, its dearest units
forced up a step each until the target is met, the rest free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from precision_audit.analyse.predicted_error import predicted_error
from precision_audit.plan import plan as cheapest_plan
from precision_audit.plan.choosing import HIGH, LOW
from precision_audit.records import Graph, Hardware
from precision_audit.searching.evidence import Base, held
from precision_audit.searching.hull import SAME, Solved, area, below, lower_hull, shown, slope

__all__ = ["Planner", "Solved"]

_CUTS = 40  # at most, on the way to one target; seven to fifteen are usual
_SINGLES = 24  # units tried one by one after as many as go together were taken over
_RAISED = 64  # units up to which each one is tried high in a plan: a cut each
_CORNERS = 16  # of a frontier that is shown


class Planner:
    """The plans of one base. `hopeful`: ops whose error is unknown may run low, and count for nothing."""

    def __init__(self, graph: Graph, base: Base, hardware: Hardware, hopeful: bool) -> None:
        self._graph, self._base, self._hardware, self._hopeful = graph, base, hardware, hopeful
        self._held = held(base, hopeful)
        self._known: dict[tuple[float, tuple[tuple[str, str], ...]], Solved] = {}
        self.low = base.policy.low
        self.units = _units(base)
        self._fastest: Solved | None = None
        self.seen: dict[tuple[object, ...], Solved] = {}

    def at(self, lam: float, forced: Mapping[str, str] | None = None) -> Solved:
        """The cheapest plan where an error of 1 is worth `lam` seconds."""
        demands = {**self._held, **(forced or {})}
        asked = (lam, tuple(sorted(demands.items())))
        if asked not in self._known:
            choices = replace(self._base.choices, forced=demands)
            made = cheapest_plan(
                self._graph, self._base.decided, self._base.policy, self._hardware,
                lam=lam, error_shares=self._base.shares, choices=choices,
            )  # fmt: skip
            predicted = made.predicted
            assert predicted is not None
            error = predicted_error(self._base.facts.shares, made, self._graph)
            made = replace(made, predicted=replace(predicted, error_share=error**2))
            solved = Solved(made, predicted.seconds, error, self._hopeful)
            self._known[asked] = self.seen.setdefault(solved.key, solved)
        return self._known[asked]

    def fastest(self) -> Solved:
        """Whatever its error."""
        if self._fastest is None:
            self._fastest = self._raised(self.at(0.0), 0.0)
        return self._fastest

    def safest(self) -> Solved:
        """Everything high that may be."""
        return self.at(0.0, dict.fromkeys(self._base.free, HIGH))

    def cheapest(self, target: float) -> Solved | None:
        """The cheapest plan found whose predicted error is at most `target`; None where not even everything high is."""
        bad, good = self.fastest(), self.safest()
        if bad.error <= target:
            return self._more_exact(bad, good)
        if good.error > target:
            return None
        for _ in range(_CUTS):
            lam = slope(bad, good)
            if lam is None:
                break
            new = self.at(lam)
            if new.key in (bad.key, good.key) or not below(new, bad, good, lam):
                break
            bad, good = (bad, new) if new.error <= target else (new, good)
        best = self._between(bad, good, target)
        raised = self._raised(best, slope(bad, good) or 0.0)
        stepped = self._stepped(target)
        within = [each for each in (best, raised, stepped) if each.error <= target]
        found = min(within, key=lambda each: (shown(each.seconds), each.error, each.seconds))
        return self._more_exact(found, self.safest())

    def hull(self) -> list[Solved]:
        """Corners from the fastest plan to everything high, fastest first; a fixed number at most."""
        found = [self.fastest(), self.safest()]
        gaps = [(found[0], found[1])]
        while gaps and len(found) < _CORNERS:
            gaps.sort(key=lambda gap: -area(*gap))
            bad, good = gaps.pop(0)
            lam = slope(bad, good)
            if lam is None:
                continue
            new = self.at(lam)
            if new.key in (bad.key, good.key) or not below(new, bad, good, lam):
                continue
            found.append(new)
            gaps += [(bad, new), (new, good)]
        return lower_hull(found)

    def states(self, solved: Solved) -> dict[str, str]:
        """What each free op got: high, low, or a recipe."""
        formats, swapped = dict(solved.plan.formats), {swap.op: swap.recipe for swap in solved.plan.swaps}
        return {
            key: swapped.get(key) or (LOW if formats.get(key) == solved.plan.low else HIGH)
            for key in self._base.free if key in formats
        }  # fmt: skip

    def _raised(self, solved: Solved, lam: float) -> Solved:
        """The plan with units high that cost time low: a cut charges casts that promotion makes superfluous."""
        states = self.states(solved)
        for unit in self.units if len(self.units) <= _RAISED else ():
            if states.get(unit[0], HIGH) == HIGH:
                continue
            made = self.at(lam, {**states, **dict.fromkeys(unit, HIGH)})
            if made.seconds < solved.seconds * (1 - SAME) and made.error <= solved.error:
                solved, states = made, self.states(made)
        return solved

    def _more_exact(self, found: Solved, good: Solved) -> Solved:
        """The corner with the least error on the way to `good` that takes, as a report prints it, no longer."""
        for _ in range(_CUTS):
            lam = slope(found, good)
            if lam is None or shown(good.seconds) == shown(found.seconds):
                break
            new = self.at(lam)
            if new.key in (found.key, good.key) or new.error >= found.error or not below(new, found, good, lam):
                break
            found, good = (new, good) if shown(new.seconds) <= shown(found.seconds) else (found, new)
        return good if shown(good.seconds) == shown(found.seconds) and good.error < found.error else found

    def _between(self, bad: Solved, good: Solved, target: float) -> Solved:
        """The fastest plan found within the target that takes over from `bad` what it can: formats first, where `bad`
        has swapped a linear the low format, then the swaps."""
        lam = slope(bad, good) or 0.0
        cheap = self.states(bad)
        unswapped = {key: state if state == HIGH else LOW for key, state in cheap.items()}
        for states in (unswapped, cheap) if unswapped != cheap else (cheap,):
            good = self._taken_over(states, good, target, lam)
        fastest = self.states(self.fastest())  # both corners may hold high what is now affordable
        lowered = {
            key: state if state not in (HIGH, LOW) else HIGH if fastest.get(key) == HIGH else LOW
            for key, state in self.states(good).items()
        }
        good = self._taken_over(lowered, good, target, lam)
        return self._taken_over(self._swapped(self.states(good), lam), good, target, lam)

    def _swapped(self, states: Mapping[str, str], lam: float) -> dict[str, str]:
        """The states, every low unit that could be swapped so, by its cheapest recipe where error is worth `lam`."""
        choices, found = self._base.choices, dict(states)
        for unit in self.units:
            offered = [{swap.recipe for swap in choices.swaps.get(key, ())} for key in unit]
            recipes = sorted(set.intersection(*offered))
            if not recipes or any(states.get(key) != LOW for key in unit):
                continue

            def price(recipe: str, unit: tuple[str, ...] = unit) -> float:
                return sum(choices.seconds[key, recipe] + lam * choices.shares[key, recipe] for key in unit)

            found.update(dict.fromkeys(unit, min(recipes, key=price)))
        return found

    def _stepped(self, target: float) -> Solved:
        """The fastest plan with as few units as it takes a step up, from a recipe to low or from low to high, the one
        with the largest share first; everything high where it takes all."""
        states = self.states(self.fastest())
        steps = [(_share(unit, states, self._base), unit, states[unit[0]]) for unit in self.units if unit[0] in states]
        plain = dict.fromkeys(states, LOW)
        steps += [(_share(unit, plain, self._base), unit, LOW) for _, unit, state in steps if state not in (HIGH, LOW)]
        order = sorted((step for step in steps if step[2] != HIGH), key=lambda step: -step[0])
        found, least, most = self.safest(), 0, len(order)
        while least < most:
            middle = (least + most) // 2
            forced = dict(states) if middle else {}
            for _, unit, state in order[:middle]:
                forced.update(dict.fromkeys(unit, HIGH if state == LOW else LOW))
            up = {key for _, unit, _ in order[:middle] for key in unit}
            made = self.at(0.0, {key: state for key, state in forced.items() if key in up or state not in (HIGH, LOW)})
            least, most = (least, middle) if made.error <= target else (middle + 1, most)
            found = made if made.error <= target else found
        return found

    def _taken_over(self, cheap: Mapping[str, str], good: Solved, target: float, lam: float) -> Solved:
        """`good` with as many units of `cheap` as the target allows: a number of the best at once, then single ones."""
        dear = self.states(good)
        units = [unit for unit in self.units if any(cheap.get(key) != dear.get(key) for key in unit)]
        order = self._by_worth(units, cheap, dear, good, lam)

        def taken(chosen: Iterable[tuple[str, ...]]) -> Solved:
            over = {key: cheap.get(key, HIGH) for unit in chosen for key in unit}
            return self.at(lam, {**dear, **over})  # all of it forced: at this λ both corners cost the same

        found = [good]
        least, most = 0, len(order)
        while least < most:
            middle = (least + most + 1) // 2
            made = taken(order[:middle])
            least, most = (middle, most) if made.error <= target else (least, middle - 1)
            found.append(made)
        chosen = list(order[:least])
        for unit in order[least : least + _SINGLES]:
            made = taken([*chosen, unit])
            found.append(made)
            if made.error <= target and made.seconds < min(each.seconds for each in found[:-1] if each.error <= target):
                chosen.append(unit)
        within = [each for each in found if each.error <= target]
        return min(within, key=lambda each: (each.seconds, each.error))

    def _by_worth(
        self,
        units: Sequence[tuple[str, ...]],
        cheap: Mapping[str, str],
        dear: Mapping[str, str],
        good: Solved,
        lam: float,
    ) -> list[tuple[str, ...]]:
        """Units by error per second of taking them over; where there are many, by their own shares alone."""
        worth: dict[tuple[str, ...], float] = {}
        for unit in units:
            if len(units) > _SINGLES:
                worth[unit] = _share(unit, cheap, self._base) - _share(unit, dear, self._base)
                continue
            made = self.at(lam, {**dear, **{key: cheap.get(key, HIGH) for key in unit}})
            saved = good.seconds - made.seconds
            worth[unit] = max(made.error**2 - good.error**2, 0.0) / saved if saved > 0 else math.inf
        place = {unit: i for i, unit in enumerate(units)}
        return sorted(units, key=lambda unit: (worth[unit], place[unit]))


def _units(base: Base) -> list[tuple[str, ...]]:
    """Ops that get one format each, and groups."""
    free = set(base.free)
    groups = [tuple(key for key in keys if key in free) for keys in base.choices.together]
    grouped = {key for keys in groups for key in keys}
    return [*filter(None, groups), *((key,) for key in base.free if key not in grouped)]


def _share(unit: Sequence[str], states: Mapping[str, str], base: Base) -> float:
    """What the ops of a unit add by themselves."""
    total = 0.0
    for key in unit:
        state = states.get(key, HIGH)
        if state == LOW:
            total += base.shares.get(key, 0.0)
        elif state != HIGH:
            total += base.choices.shares.get((key, state), 0.0)
    return total
