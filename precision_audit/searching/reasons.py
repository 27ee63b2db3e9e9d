"""What a found plan does where, and why: every op that stays high, every linear that is swapped, with its source line.

Takes evidence and the solution; gives `Place`s and the decisions of a report. An op stays high because something holds
it (a fact, a policy's rule, a hazard's remedy, an error that is unknown), because low would be no faster with the casts
that it needs, or because its error is dear: then both figures stand beside it. Never decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from precision_audit import recipes
from precision_audit.formats import is_float
from precision_audit.plan import settle
from precision_audit.plan.choosing import LOW
from precision_audit.records import Decision, Op, Place, Plan, Swap
from precision_audit.searching.evidence import Base, Evidence
from precision_audit.searching.frontier import Planner, Solved
from precision_audit.searching.solving import Solution, planner

_ASKED = 400  # free ops up to which each one is tried low by itself, a cut each


def decisions(evidence: Evidence, solution: Solution) -> tuple[Decision, ...]:
    """Of every op, settled by the plan, with the search's reason where it was free."""
    base, plan = solution.best.base, solution.best.solved.plan
    swapped = {swap.op: swap for swap in plan.swaps}
    why = {place.op: place.why for place in high(evidence, solution)}
    return tuple(_settled(each, base, plan, swapped, why) for each in settle(base.decided.decisions, plan))


def high(evidence: Evidence, solution: Solution) -> tuple[Place, ...]:
    """Every computed op whose floats stay in the high format, in graph order."""
    base, solved = solution.best.base, solution.best.solved
    plan, formats = solved.plan, dict(solved.plan.formats)
    reasons = {each.op: each for each in base.decided.decisions}
    stays = [
        op for op in evidence.graph.ops
        if op.key in reasons and formats.get(op.key) == plan.high and any(is_float(t.format) for t in op.outputs)
    ]  # fmt: skip
    free = set(base.free)
    weighed = [op.key for op in stays if op.key in free]
    alone = _alone(planner(evidence, base, solved.hopeful), solved, weighed, base) if len(weighed) <= _ASKED else {}
    return tuple(_place(op, plan, reasons[op.key], base, solved, alone) for op in stays)


def swapped(evidence: Evidence, solution: Solution) -> tuple[Place, ...]:
    """Every linear that is swapped, with what it adds and what it saves against the plain low format."""
    base, plan = solution.best.base, solution.best.solved.plan
    ops = {op.key: op for op in evidence.graph.ops}
    found = []
    for swap in plan.swaps:
        row = recipes.recipe(swap.backend, swap.recipe)
        error = math.sqrt(base.choices.shares.get((swap.op, swap.recipe), 0.0))
        why = f"{swap.kind} for nn.Linear, K={swap.k} N={swap.n} M={swap.m}"
        seconds = base.choices.seconds.get((swap.op, swap.recipe), 0.0)
        name = f"{row.peak or plan.low} {row.name}"
        found.append(Place(swap.op, swap.module, name, why, ops[swap.op].source, error, seconds))
    return tuple(found)


def _settled(
    decision: Decision, base: Base, plan: Plan, swapped: Mapping[str, Swap], why: Mapping[str, str]
) -> Decision:
    if decision.op in swapped:
        swap = swapped[decision.op]
        runs = f"{recipes.arithmetic(swap.backend, swap.recipe)} {swap.recipe}"
        return replace(decision, chosen=runs, reason=f"search: swapped by {swap.backend}, within the budget")
    if decision.op in base.free:
        return replace(decision, reason=f"search: {why.get(decision.op) or f'{decision.chosen} is within the budget'}")
    return decision


def _place(op: Op, plan: Plan, decision: Decision, base: Base, solved: Solved, alone: Mapping[str, Solved]) -> Place:
    why, error, seconds = decision.reason, 0.0, 0.0
    if op.key in base.lost:
        why = base.lost[op.key]
    elif op.key in base.unknown and not solved.hopeful:
        why = base.unknown[op.key]
    elif op.key in alone:
        made = alone[op.key]
        error = math.sqrt(max(made.error**2 - solved.error**2, 0.0))
        seconds = solved.seconds - made.seconds
        if seconds <= solved.seconds * 1e-9:
            why = f"{plan.low} would save nothing here: casts cost as much"
        else:
            why = f"in {plan.low} it would add {error:.2g} to the error and save {seconds * 1e6:.3g} µs"
    elif op.key in base.free:
        why = f"{plan.low} costs more error here than its time is worth"
    return Place(op.key, op.module, plan.high, why, op.source, error, seconds)


def _alone(plans: Planner, solved: Solved, keys: list[str], base: Base) -> dict[str, Solved]:
    """The plan with one more op low, those that go with it too."""
    states = plans.states(solved)
    unit_of = {key: unit for unit in plans.units for key in unit}
    asked = [key for key in keys if key not in base.lost and key not in base.unknown]
    return {key: plans.at(0.0, {**states, **dict.fromkeys(unit_of[key], LOW)}) for key in asked}
