"""From records to a plan: decide, then the cut, autocast's propagation, or a plan that was committed.

Takes a graph, policy, device and facts; gives `Planned`: decisions with the plan's choices in them, the plan, the
findings. Which of the three ways is taken is the policy's (`autocast`) or the user's (`apply_plan`) to say, never this
file's. Decided twice where a hazard was found: first to find it, then with its remedy. A finding counts as resolved
when the plan that was made, however it was made, runs every op in the high format that the remedy names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from precision_audit import autocast, backends
from precision_audit.analyse.predicted_error import predicted_error
from precision_audit.decide import Decided, decide
from precision_audit.formats import is_float
from precision_audit.plan import file as plan_file
from precision_audit.plan import plan as cheapest
from precision_audit.plan import settle
from precision_audit.records import NO_FACTS, Decision, Facts, Finding, Graph, Hardware, InputError, Plan, Policy
from precision_audit.rules.sparing import spared


@dataclass(frozen=True, slots=True)
class Planned:
    decisions: tuple[Decision, ...]
    plan: Plan
    findings: tuple[Finding, ...]


def planned(
    graph: Graph,
    policy: Policy,
    hardware: Hardware,
    committed: Plan | None = None,
    facts: Facts = NO_FACTS,
    further: Iterable[Finding] = (),
) -> Planned:
    """Decisions, plan and findings of one captured mode. `committed` is used as written once it was checked to fit.
    `further` are findings of the other mode, whose remedies hold in this one too."""
    decided = judged(graph, policy, hardware, facts, further)
    # The other mode of a training conversion gets a plan of its own.
    given = None
    if committed is not None and committed.mode == graph.mode:
        given = _checked(committed, graph, policy, hardware)
    if policy.autocast:
        decisions, made = autocast.propagate(graph, policy)
        made = given or made
        found = _resolved(decided.findings, made, graph)
        # what autocast itself keeps high is no hazard under it; what a rule calls resolved the conversion mends
        stays = (new for old, new in zip(decided.findings, found, strict=True) if old.resolved or not new.resolved)
        return Planned(decisions, made, tuple(stays))
    made = _with_error(given or cheapest(graph, decided, policy, hardware), graph, facts)
    decisions = settle(decided.decisions, made)
    found = _overridden(_resolved(_holding(decided.findings, made), made, graph), decisions)
    return Planned(decisions, made, found)


def judged(graph: Graph, policy: Policy, hardware: Hardware, facts: Facts, further: Iterable[Finding] = ()) -> Decided:
    """Decided once to find hazards, and again with their remedies where there are any."""
    offered = backends.listed()
    decided = spared(decide(graph, policy, hardware, offered, facts=facts), graph, policy, facts)
    heeded = [finding for finding in (*further, *decided.findings) if not finding.overridden]
    remedies = {key: finding for finding in heeded for key in finding.pins}
    refused = {key: finding for finding in heeded for key in finding.refuses}
    if not remedies and not refused:
        return decided
    return spared(decide(graph, policy, hardware, offered, remedies, facts, refused), graph, policy, facts)


def judged_plan(decided: Decided, made: Plan, graph: Graph) -> tuple[Finding, ...]:
    """The findings, those that the plan resolves marked so."""
    return _overridden(_resolved(_holding(decided.findings, made), made, graph), settle(decided.decisions, made))


def fitting_plan(committed: str | Path | Plan | None, policy: Policy) -> Plan | None:
    """The plan to apply, read and of the policy's mode; InputError for one of the other mode."""
    if committed is None:
        return None
    made = committed if isinstance(committed, Plan) else plan_file.read(Path(committed))
    if made.mode != policy.mode:
        raise InputError(
            f"the plan to apply is for {made.mode}, policy {policy.name} for {policy.mode}; "
            f"give a policy of mode {made.mode}, or write a plan under this one with --write-plan"
        )
    return made


def _holding(findings: Iterable[Finding], made: Plan) -> tuple[Finding, ...]:
    """Without what was feared of ops that the policy lets run low and the plan does not: its error is within bounds."""
    error = math.sqrt(made.predicted.error_share) if made.predicted is not None else math.inf
    return tuple(each for each in findings if not each.bound or error > each.bound)


def _with_error(made: Plan, graph: Graph, facts: Facts) -> Plan:
    """The plan with the error that the shares predict of it."""
    if made.predicted is None or not facts.shares:
        return made
    error = predicted_error(facts.shares, made, graph)
    return replace(made, predicted=replace(made.predicted, error_share=error**2))


def _resolved(findings: Iterable[Finding], made: Plan, graph: Graph) -> tuple[Finding, ...]:
    """Findings marked resolved where every op that the remedy names has floats in the high format or as captured, and
    none that it refuses to swap is swapped."""
    captured = {op.key: next((t.format for t in op.outputs if is_float(t.format)), "") for op in graph.ops}
    chosen = dict(made.formats)
    swapped = {key for swap in made.swaps for key in swap.ops}

    def high(key: str) -> bool:
        kept = chosen.get(key, captured.get(key, "")) in (made.high, captured.get(key, ""))
        return kept and key not in swapped

    def met(finding: Finding) -> bool:
        asks = bool(finding.pins or finding.refuses)
        return asks and all(high(key) for key in finding.pins) and swapped.isdisjoint(finding.refuses)

    return tuple(replace(finding, resolved=True) if met(finding) else finding for finding in findings)


def _overridden(findings: Iterable[Finding], decisions: Iterable[Decision]) -> tuple[Finding, ...]:
    """Findings whose remedy lost against a `pin:` of the policy say so. Where a rule is turned off and its ops run high
    all the same, nothing was overridden and nothing stays."""
    pinned = {each.op: each for each in decisions if each.classification.startswith("pin:")}

    def by(finding: Finding) -> str:
        against = next((pinned[key] for key in finding.pins if key in pinned), None)
        if finding.resolved or finding.overridden or against is None:
            return finding.overridden
        return f"pinned to {against.chosen} by {against.reason}"

    kept = (finding for finding in findings if not (finding.resolved and finding.overridden))
    return tuple(replace(finding, overridden=by(finding)) for finding in kept)


def _of_another(committed: Plan, policy: Policy) -> str:
    return f", or give policy {committed.policy}, which it was made for" if committed.policy != policy.name else ""


def _checked(committed: Plan, graph: Graph, policy: Policy, hardware: Hardware) -> Plan:
    problems = plan_file.check(committed, graph, policy, hardware)
    if problems:
        raise InputError(
            f"the plan does not fit this model: {problems[0]}"
            + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
            + f"; write it again with --write-plan{_of_another(committed, policy)}"
        )
    return committed
