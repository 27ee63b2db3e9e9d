"""Plain low precision: what `.half()` or `.bfloat16()` would make of a model, as a plan.

Takes a graph, policy and device; gives the plan under which every op that has a low kernel runs low. The yardstick of
every figure in a report, and what the analysis runs beside the captured model. Looks for no hazard and has no remedy.
"""

from __future__ import annotations

from dataclasses import replace

from precision_audit.decide import Decided, decisions_alone
from precision_audit.plan import plan as cheapest
from precision_audit.records import Graph, Hardware, Plan, Policy, Rule


def everything_low(graph: Graph, policy: Policy, hardware: Hardware) -> Plan | None:
    """Plain low precision: every op that has a low kernel runs low. None where a policy has no low format."""
    if policy.low == policy.high:
        return None
    low = Rule("everything", "plain", f"safe-in-{policy.low}")
    plain = replace(policy, name=f"plain {policy.low}", rules=(low,), autocast="", casts="shared", keep_io_types=True)
    return cheapest(graph, Decided(decisions_alone(graph, plain, hardware), (), (), ()), plain, hardware)
