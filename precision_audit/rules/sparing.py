"""Products that a remedy keeps high without need: taken out of its pins.

Takes what was decided of a graph, and the facts; gives the findings, some with fewer pins. A rule about accuracy keeps
what makes an operand, back to the products at its border, and knows of a product only that it is there. The shares tell
what its own rounding adds to the outputs' error: one whose part is nothing beside the tolerance runs low, as long as
the prediction for all that is kept still meets the tolerance. Products are where the time goes.

Only remedies of an error that grows evenly are lightened: what a decision needs no gradient tells, nor what is needed
beside the place where elements are lost. A product from which either descends is left alone. Never takes the op that a
finding names, nor its last pin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from precision_audit.analyse.predicted_error import needless, weights
from precision_audit.decide import Decided
from precision_audit.records import Beside, Decision, Facts, Finding, Graph, Policy
from precision_audit.rules.upstream import PRODUCTS

_EVEN = frozenset({"PA202", "PA203", "PA204", "PA207", "PA208", "PA209", "PA210", "PA211"})
_NOTHING = 1e-2  # part of the square of the tolerance


def spared(decided: Decided, graph: Graph, policy: Policy, facts: Facts) -> Decided:
    """The same with findings that have no pins on products which are not needed."""
    tolerance = dict(policy.tolerances).get("relative_l2", 0.0)
    findings = decided.findings
    candidates = _candidates(decided, graph, facts, tolerance) if facts.shares and tolerance else []
    if not candidates:
        return decided
    kept = {key for each in findings if not each.overridden for key in each.pins}
    low = may_run_low(decided.decisions, policy)
    swapped = [key for swap in decided.swaps for key in swap.linears if key in low]
    target = tolerance * math.sqrt(outputs(graph))
    idle = needless(facts.shares, low, graph, kept, candidates, target, swapped)
    return replace(decided, findings=tuple(_without(each, idle) if each.rule in _EVEN else each for each in findings))


def may_run_low(decisions: Iterable[Decision], policy: Policy) -> list[str]:
    """Ops that the policy lets run low, those that it would but for a remedy among them."""
    found = []
    for each in decisions:
        by_remedy = each.reason.startswith("rule ") and " over " in each.reason
        if each.classification != "fixed" and (each.chosen != policy.high or by_remedy):
            found.append(each.op)
    return found


def outputs(graph: Graph) -> int:
    """How many there are: shares add up over them, and each may be off by the tolerance."""
    return max(1, sum(1 for value in graph.outputs if value))


def _candidates(decided: Decided, graph: Graph, facts: Facts, tolerance: float) -> list[str]:
    """Products that only remedies of an even error keep high, and that add next to nothing."""
    even: set[str] = set()
    others: set[str] = set()
    for each in decided.findings:
        (even if each.rule in _EVEN else others).update(each.pins)
        if each.rule in _EVEN:
            others.add(each.op)
    adds = weights(facts.shares, [key for swap in decided.swaps for key in swap.linears])
    unknown = {each.reader or each.source for each in facts.shares if not each.known}
    tied = others | unknown | _before_a_break(graph, facts)
    return [
        op.key
        for op in graph.ops
        if op.kind in PRODUCTS and op.key in even - tied and adds.get(op.key, math.inf) < _NOTHING * tolerance**2
    ]


def _before_a_break(graph: Graph, facts: Facts) -> set[str]:
    """Ops from which an integer or bool descends that the low model has otherwise, or an element that it loses."""
    runs: Sequence[Iterable[Beside]] = (facts.beside, *(each.beside for each in facts.again))
    hot = {each.value for run in runs for each in run if each.changed or each.lost}
    found: set[str] = set()
    for op in reversed(graph.ops):
        if not hot.isdisjoint(op.values):
            found.add(op.key)
            hot.update(operand.value for operand in op.operands)
    return found


def _without(finding: Finding, idle: set[str]) -> Finding:
    left = tuple(key for key in finding.pins if key not in idle)
    return replace(finding, pins=left) if left else finding
