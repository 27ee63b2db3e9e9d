"""From a solution to the report: the same `Report` as an audit's, of the plan that was found, with its `Search`.

Takes evidence and solution; gives records only. The verification is that of the search's own run: no model is run for
the report. What plain low precision gives beside it was seen by the evidence.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace

from precision_audit.cost import cost
from precision_audit.cost.layers import layers
from precision_audit.planning import Planned, judged_plan
from precision_audit.records import Bound, Comparison, Outcome, Plan, Point, Policy, Report, Search, Verification
from precision_audit.report.assemble import assemble, provenance_of
from precision_audit.report.provenance import emulated as emulated_by
from precision_audit.searching import reasons
from precision_audit.searching.alternatives import BUILDABLE
from precision_audit.searching.evidence import Evidence
from precision_audit.searching.frontier import Planner, Solved
from precision_audit.searching.hull import lower_hull
from precision_audit.searching.solving import RUNS, Solution
from precision_audit.verify.measures import is_discrete, measure


def report(evidence: Evidence, solution: Solution) -> Report:
    """The report of the plan that was found."""
    base, plan = solution.best.base, solution.best.solved.plan
    policy = _with_budget(base.policy, solution)
    decided = replace(base.decided, decisions=reasons.decisions(evidence, solution))
    made = Planned(decided.decisions, plan, judged_plan(decided, plan, evidence.graph))
    verification = _verification(evidence, solution)
    said = dict(evidence.said)
    meta = provenance_of(
        evidence.original, policy, evidence.hardware, evidence.device_from, plan, base.facts, evidence.batches, said
    )
    emulated = _emulated(plan)
    meta = replace(meta, weights_digest=evidence.weights_digest, emulated=emulated)
    found = assemble(evidence.graph, made, verification, policy, meta, said, evidence.hardware.kernels)
    search = _search(evidence, solution, emulated)
    linears = layers(evidence.graph, plan, policy, evidence.hardware)
    spent = cost(evidence.graph, plan, policy, evidence.hardware, base.facts, linears)
    return replace(found, facts=base.facts, cost=spent, search=search, next_steps=_next(found, search, said))


def _search(evidence: Evidence, solution: Solution, emulated: tuple[str, ...]) -> Search:
    best, high = solution.best, solution.high
    grouped = {key for unit in best.base.choices.together for key in unit} & set(best.base.free)
    return Search(
        outcome=_outcome(solution),
        bounds=tuple(_bounds(evidence, solution)),
        runs=solution.runs,
        seconds=best.solved.seconds,
        seconds_high=high.solved.seconds,
        predicted_error=best.solved.error,
        frontier=_frontier(evidence, solution),
        trials=tuple(solution.trials),
        high=reasons.high(evidence, solution),
        swapped=reasons.swapped(evidence, solution),
        together=tuple(unit for unit in best.base.choices.together if grouped.issuperset(unit)),
        emulated=emulated,
        notes=tuple(_notes(evidence, solution)),
    )


def _outcome(solution: Solution) -> Outcome:
    if not solution.met:
        return "not met"
    return "nothing low" if solution.best.run is None else "met"


def _bounds(evidence: Evidence, solution: Solution) -> list[Bound]:
    found = []
    run = solution.best.run
    for index, (limit, usage) in enumerate(zip(solution.limits, solution.best.usages, strict=True)):
        origin = 0.0
        if solution.metric is not None and limit.of_metric:
            origin = evidence.reference.metric(solution.metric)
        if run is not None:
            value = run.values[index]
        elif limit.measure == "sqnr":
            noise = evidence.reference.noise
            value = -20 * math.log10(noise) if noise else math.inf
        elif limit.function is not None:
            value = evidence.reference.alike(limit.name, limit.function)
        else:
            value = origin if limit.of_metric else evidence.reference.noise
        found.append(Bound(limit.name, limit.stated, limit.bound, value, usage, origin))
    return found


def _frontier(evidence: Evidence, solution: Solution) -> tuple[Point, ...]:
    """The hull over all bases, of predictions for which no op of unknown error counts as free, and the plan found."""
    planners = [each for (_, hopeful), each in sorted(evidence.known.items()) if not hopeful]
    points = lower_hull(each for planner in planners for each in planner.hull())
    best = solution.best.solved
    if all(each.key != best.key for each in points):
        points = sorted([*points, best], key=lambda each: (each.seconds, -each.error))
    return tuple(_point(each, planners, each.key == best.key) for each in points)


def _point(solved: Solved, planners: Sequence[Planner], chosen: bool) -> Point:
    planner = next(each for each in planners if each.low == solved.low)
    states = planner.states(solved)
    recipes = sorted({swap.recipe for swap in solved.plan.swaps})
    swaps = tuple((name, sum(swap.recipe == name for swap in solved.plan.swaps)) for name in recipes)
    low = sum(state != "high" for state in states.values())
    return Point(solved.seconds, solved.error, solved.low, low, len(states), swaps, len(solved.plan.casts), chosen)


def _notes(evidence: Evidence, solution: Solution) -> list[str]:
    found: list[str] = []
    noise = evidence.reference.noise
    high = solution.high
    if solution.fastest_met and len(solution.trials) >= 1:
        found.append("the fastest plan that there is keeps to the budget: a tighter one would cost no time yet")
    if not solution.met and noise and high.usage > 1 and high.solved.error == 0:
        found.append(
            f"the model differs from itself by {noise:.1e} (relative L2), more than the budget allows: "
            "no plan can keep to it; make the model deterministic, or raise the budget"
        )
    elif not solution.met:
        held = "the policy's pins" if high.solved.error else "what was tried"
        found.append(f"no plan keeps to the budget, because of {held}; this is the nearest that was reached")
    elif solution.best.run is None:
        faster = (
            "none of the plans that were run kept to it"
            if solution.runs
            else "no faster plan is predicted to keep to it"
        )
        found.append(f"nothing runs low: {faster}; the captured model is the plan")
    for raised in dict.fromkeys(each.raised for each in solution.trials if each.raised):
        found.append(f"a plan that was run raised {raised}: it counts as one that does not keep to the budget")
    measured = (pair for each in solution.trials if not each.raised for pair in each.measured)
    for name in dict.fromkeys(name for name, value in measured if math.isnan(value)):
        found.append(f"{name} of a plan that was run is NaN: it counts as one that does not keep to the budget")
    found += [f"{each}; no linear is swapped by it" for each in evidence.lacking]
    if evidence.left_out:
        found.append(
            f"left out, since their modules cannot be written here: {', '.join(evidence.left_out)}; "
            "a search without -o OUT (built_only) plans and emulates them"
        )
    if solution.met and solution.runs >= RUNS:
        found.append(f"all {RUNS} runs were used: a faster plan within the budget may exist")
    if solution.best.solved.hopeful and solution.best.run is not None:
        found.append("ops whose error no gradient tells run low in it: what was measured is all that speaks for them")
    if evidence.mode == "training":
        found.append("the budget is of outputs; gradients are judged by: convert --apply-plan")
    return found


def _verification(evidence: Evidence, solution: Solution) -> Verification:
    known, best = evidence.reference, solution.best
    by_name = {limit.measure: limit for limit in solution.limits}
    allowed = by_name["relative_l2"].bound if "relative_l2" in by_name else None
    drifts = {each.value: each.drift for each in (*best.base.facts.beside, *best.base.facts.cast)}  # as cast, if known
    outputs = []
    for index, (name, value) in enumerate(known.names().items()):
        seen = best.run.outputs.get(name) if best.run is not None else measure(value, value)
        if seen is None:
            continue
        discrete = is_discrete(value)
        plain = drifts.get(evidence.graph.outputs[index]) if index < len(evidence.graph.outputs) else None
        limit = None if discrete else allowed
        outputs.append(
            Comparison(
                name=name,
                relative_l2=seen.relative_l2,
                max_abs=seen.max_abs,
                sqnr_db=seen.sqnr_db,
                cosine=seen.cosine,
                nonfinite=seen.nonfinite,
                reference_nonfinite=seen.reference_nonfinite,
                flip_rate=seen.flip_rate,
                row_median=seen.row_median,
                plain_relative_l2=plain,
                limit=limit,
                passed=limit is None or seen.relative_l2 <= limit,
                compared=seen.compared,
                figure="elements changed" if discrete else "relative L2",
            )
        )
    noise = known.noise
    against = f"differs from itself by {noise:.1e} (relative L2)" if noise else "bitwise equal to itself"
    notes = (best.run.raised,) if best.run is not None and best.run.raised else ()
    return Verification(
        passed=solution.met,
        outputs=tuple(outputs),
        reference=against,
        captured_against_eager=evidence.eager,
        emulated=_emulated(best.solved.plan),
        notes=notes,
        noise=noise / allowed if allowed else 0.0,
    )


def _emulated(plan: Plan) -> tuple[str, ...]:
    """Modules that computed as another device would."""
    planned = {f"{swap.kind} {swap.recipe}" for swap in plan.swaps if swap.backend not in BUILDABLE}
    return (*emulated_by(plan), *(f"{each}: its product, not its module" for each in sorted(planned)))


def _with_budget(policy: Policy, solution: Solution) -> Policy:
    """The report's policy: its tolerance is the budget."""
    for limit in solution.limits:
        if limit.error:
            return replace(policy, tolerances=(("relative_l2", limit.error),))
    return replace(policy, tolerances=(("relative_l2", 1.0),))


def _next(found: Report, search: Search, said: dict[str, str]) -> tuple[str, ...]:
    if search.outcome != "met" or not said.get("command"):
        steps = () if search.outcome == "met" else found.next_steps
        begins = ("precision-audit search", "precision-audit convert")  # which makes another plan
        return tuple(step for step in steps if not step.startswith(begins) and not step.endswith(" -v"))
    unbuilt = [swap for swap in found.plan.swaps if swap.backend not in BUILDABLE]
    typed = shlex.split(said["command"])
    written = _value(typed, "--write-plan")
    words = shlex.split(said.get("options", ""))
    if not _value(typed, "--policy") and "--policy" in words:  # a plan that was written brings the policy of the search
        at = words.index("--policy")
        del words[at : at + 2]
    again = [found.meta.model, *words, "--apply-plan", written or "plan.yaml", "-o", "out/"]
    there = f"there, on {found.meta.device}: " if unbuilt else ""
    convert = f"{there}precision-audit convert {shlex.join(again)}"
    return (convert,) if written else ("the same with --write-plan plan.yaml, review it, then", convert)


def _value(words: Sequence[str], option: str) -> str:
    """What `option` was given last, as `--option value` or `--option=value`; empty where it was not."""
    given = [after for word, after in itertools.pairwise(words) if word == option]
    return (given + [word.partition("=")[2] for word in words if word.startswith(f"{option}=")] or [""])[-1]
