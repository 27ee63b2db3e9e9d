"""From records to a plan: decide, then the cut, autocast's propagation, or a plan that was committed.

Takes a graph, policy and device; gives `Planned`: decisions with the plan's choices in them, the plan, the findings.
Which of the three ways is taken is the policy's (`autocast`) or the user's (`apply_plan`) to say, never this file's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from precision_audit import autocast, backends
from precision_audit.decide import Decided, decide
from precision_audit.plan import file as plan_file
from precision_audit.plan import plan as cheapest
from precision_audit.plan import settle
from precision_audit.records import Decision, Finding, Graph, Hardware, InputError, Plan, Policy, Rule


@dataclass(frozen=True, slots=True)
class Planned:
    decisions: tuple[Decision, ...]
    plan: Plan
    findings: tuple[Finding, ...]


def planned(graph: Graph, policy: Policy, hardware: Hardware, committed: Plan | None = None) -> Planned:
    """Decisions, plan and findings of one captured mode. `committed` is used as written once it was checked to fit."""
    decided = decide(graph, policy, hardware, backends.listed())
    # The other mode of a training conversion gets a plan of its own.
    given = _checked(committed, graph, policy) if committed is not None and committed.mode == graph.mode else None
    if policy.autocast:
        decisions, made = autocast.propagate(graph, policy)
        return Planned(decisions, given or made, decided.findings)
    made = given or cheapest(graph, decided, policy, hardware)
    return Planned(settle(decided.decisions, made), made, decided.findings)


def everything_low(graph: Graph, policy: Policy, hardware: Hardware) -> Plan | None:
    """Plain low precision: every op that has a low kernel runs low. None where a policy has no low format."""
    if policy.low == policy.high:
        return None
    low = Rule("everything", "plain", f"safe-in-{policy.low}")
    plain = replace(policy, name=f"plain {policy.low}", rules=(low,), autocast="", casts="shared", keep_io_types=True)
    return cheapest(graph, Decided(decide(graph, plain, hardware, {}).decisions, (), (), ()), plain, hardware)


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


def _checked(committed: Plan, graph: Graph, policy: Policy) -> Plan:
    problems = plan_file.check(committed, graph, policy)
    if problems:
        raise InputError(
            f"the plan does not fit this model: {problems[0]}"
            + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
            + "; write it again with --write-plan"
        )
    return committed
