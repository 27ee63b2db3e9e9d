"""Fuse: one module for several ops, where the policy and the hazards leave those ops to it.

Takes what was decided op by op, with a swap per linear; gives decisions and swaps in which a backend's larger modules
(norm and linear, a whole MLP) have taken the place of smaller ones. Such a module decides the format of every op
inside, so nobody else may have: an op that the policy pins, or that a remedy keeps high, stays outside. A class
(`keep-fp32` of norms) does not stand against it: inside, a norm is computed in fp32 all the same, from an input in the
low format. What that costs is that the norm no longer holds the residual stream in the high format: where that matters,
`fuse: none` in the policy's rule keeps every norm outside (`fuse: norm` lets norms in and leaves MLPs apart).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from precision_audit import backends
from precision_audit.policy.match import Match
from precision_audit.records import Decision, Graph, Swap


def fused(
    decisions: Sequence[Decision],
    swaps: Sequence[Swap],
    graph: Graph,
    low: str,
    matches: Mapping[str, Match],
    kept: Callable[[str], bool],
) -> tuple[tuple[Decision, ...], tuple[Swap, ...]]:
    """`kept(key)` tells whether a remedy keeps an op high. Swaps stay in the order of their first ops."""
    alone = {swap.op: swap for swap in swaps}
    decided = {decision.op: decision for decision in decisions}
    made: dict[str, Swap] = {}
    inside: dict[str, Swap] = {}  # op → the swap that computes it
    for swap in swaps:
        if swap.op in inside:
            continue
        larger = backends.fusions(swap, graph, alone, matches[swap.op].rule.fuse)
        chosen = next((each for each in larger if _free(each, decided, alone, inside, kept)), swap)
        made[swap.op] = chosen
        inside.update(dict.fromkeys(chosen.covers, chosen))
    kept_swaps = tuple(made[swap.op] for swap in swaps if swap.op in made)
    changed = tuple(_inside(each, inside.get(each.op), made.get(each.op), low) for each in decisions)
    return changed, kept_swaps


def _free(
    swap: Swap,
    decided: Mapping[str, Decision],
    alone: Mapping[str, Swap],
    inside: Mapping[str, Swap],
    kept: Callable[[str], bool],
) -> bool:
    """Whether nobody else has a say in any op that the module would compute."""
    first = decided[swap.op].classification
    for key in swap.covers:
        decision = decided.get(key)
        pinned = decision is None or decision.classification.startswith("pin:")
        if pinned or kept(key) or key in inside:
            return False
        linear = key in swap.linears
        if linear and (key not in alone or decided[key].classification != first):
            return False
    return True


def _inside(decision: Decision, holder: Swap | None, own: Swap | None, low: str) -> Decision:
    """The decision of an op that a fused module computes says so."""
    if own is not None and own.covers:
        return replace(decision, reason=f"{decision.reason}: {own.kind}")
    if holder is None:
        return decision
    where = f"computed inside {holder.kind} at {holder.module}"
    if decision.op in holder.linears:
        return replace(decision, reason=f"{decision.reason}: {where}")
    reason = f"backend {holder.backend}: {where}, over {decision.reason}"
    if decision.classification == "fixed":
        return replace(decision, reason=reason)
    return replace(decision, classification=f"safe-in-{low}", chosen=low, reason=reason)
