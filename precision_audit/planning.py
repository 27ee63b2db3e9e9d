"""From records to a plan: decide, then the cut, autocast's propagation, or a plan that was committed.

Takes a graph, policy and device; gives `Planned`: decisions with the plan's choices in them, the plan, the findings.
Which of the three ways is taken is the policy's (`autocast`) or the user's (`apply_plan`) to say, never this file's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from precision_audit import autocast, backends, plan_file
from precision_audit.decide import Decided, decide
from precision_audit.plan import plan as cheapest
from precision_audit.plan import settle
from precision_audit.records import Decision, Finding, Graph, Hardware, InputError, Plan, Policy, Rule


@dataclass(frozen=True, slots=True)
class Planned:
    decisions: tuple[Decision, ...]
    plan: Plan
    findings: tuple[Finding, ...]


def planned(graph: Graph, policy: Policy, hardware: Hardware, committed: str | Path | Plan | None = None) -> Planned:
    """Decisions, plan and findings of one captured mode. `committed` is used as written once it was checked to fit."""
    decided = decide(graph, policy, hardware, backends.listed())
    if policy.autocast:
        decisions, made = autocast.propagate(graph, policy)
        return Planned(decisions, made, decided.findings)
    if committed is not None and _fits(committed, graph):
        made = _applied(committed, graph, policy)
    else:
        made = cheapest(graph, decided, policy, hardware)
    return Planned(settle(decided.decisions, made), made, decided.findings)


def everything_low(graph: Graph, policy: Policy, hardware: Hardware) -> Plan | None:
    """Plain low precision: every op that has a low kernel runs low. None where a policy has no low format."""
    if policy.low == policy.high:
        return None
    low = Rule("everything", "plain", f"safe-in-{policy.low}")
    plain = replace(policy, name=f"plain {policy.low}", rules=(low,), autocast="", casts="shared")
    return cheapest(graph, Decided(decide(graph, plain, hardware, {}).decisions, (), (), ()), plain, hardware)


def _fits(committed: str | Path | Plan, graph: Graph) -> bool:
    """A plan is of one mode; the other mode of a training conversion gets a plan of its own."""
    made = committed if isinstance(committed, Plan) else plan_file.read(Path(committed))
    return made.mode == graph.mode


def _applied(committed: str | Path | Plan, graph: Graph, policy: Policy) -> Plan:
    made = committed if isinstance(committed, Plan) else plan_file.read(Path(committed))
    problems = plan_file.check(made, graph, policy)
    if problems:
        raise InputError(
            f"the plan does not fit this model: {problems[0]}"
            + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
            + "; write it again with --write-plan"
        )
    return made
