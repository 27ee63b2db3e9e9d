"""Does a committed plan still fit: its model, the facts, the policy, and itself?

Takes a plan, the graph captured now and the policy; gives one sentence per problem, none when it fits. A plan is judged
as it stands: that a cheaper one exists today is no problem (`cheaper` gives a note). Nor is an op that it keeps high
where a class lets it run low: evidence kept it there, which today's inputs need not show. Only a `pin:` must be met
both ways. Nothing is planned or run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from precision_audit import backends, hardware, ops
from precision_audit.decide import Decided, decide
from precision_audit.formats import is_float
from precision_audit.plan.digest import digest
from precision_audit.plan.labelling import CAPTURED, FREE, HIGH, LOW, Labels, labels
from precision_audit.plan.placing import unmet
from precision_audit.plan.reading import Readings, readings
from precision_audit.records import Cast, Decision, Fold, Graph, Hardware, Plan, Policy, Refusal, Swap

_SHOWN = 8  # ops listed by key in one sentence; more are counted
_WORTH_A_NOTE = 0.01  # a plan is called cheaper from one percent on


def check(plan: Plan, graph: Graph, policy: Policy, device: Hardware | None = None) -> list[str]:
    """What stands between the plan and this model under this policy."""
    problems = [*_settings(plan, graph, policy)] or [*_structure(plan, graph)]
    if problems or policy.autocast:  # autocast's own decisions follow no pins and no demands
        return problems
    row = device or hardware.device(policy.device or "local")
    # a swap that is not worth it any more still fits: whether a cheaper plan exists is no problem
    decided = decide(graph, replace(policy, swap="eligible"), row, backends.listed())
    reads = readings(graph, row.kernels, plan.swaps)
    asked = labels(reads, [*_kept_high(plan, decided.decisions)], policy, plan.swaps)
    return [
        *_pins(plan, graph, policy, asked),
        *_kernels(plan, graph, row),
        *_swaps(plan, decided, asked, graph, row),
        *_casts(plan, reads, asked, policy),
    ]


def cheaper(committed: Plan, fresh: Plan) -> str:
    """A note when the plan made now is predicted to be faster than the committed one, else ""."""
    if committed.predicted is None or fresh.predicted is None or not committed.predicted.seconds:
        return ""
    if (committed.formats, committed.swaps) == (fresh.formats, fresh.swaps):
        return ""  # the same plan, priced for inputs of another size
    share = 1 - fresh.predicted.seconds / committed.predicted.seconds
    if share < _WORTH_A_NOTE:
        return ""
    return f"a cheaper plan exists: predicted {share:.0%} faster; write it with --write-plan if you want it"


def _settings(plan: Plan, graph: Graph, policy: Policy) -> Iterator[str]:
    if plan.mode != graph.mode:
        yield f"the plan is for {plan.mode}, the model was captured for {graph.mode}"
    if (plan.high, plan.low) != (policy.high, policy.low):
        yield (
            f"the plan's formats are {plan.high} and {plan.low}, those of policy {policy.name} are "
            f"{policy.high} and {policy.low}"
        )


def _structure(plan: Plan, graph: Graph) -> Iterator[str]:
    planned = dict(plan.formats)
    present = {op.key: op for op in graph.ops}
    floats = [op.key for op in graph.ops if any(is_float(tensor.format) for tensor in op.outputs)]
    gone = [key for key in planned if key not in present]
    new = [key for key in floats if key not in planned]
    if gone:
        yield f"{_counted(gone)} of the plan {_are(gone)} not in the model any more"
    if new:
        yield f"{_counted(new)} of the model {_are(new)} not in the plan"
    cast: list[Cast | Fold] = [*plan.casts, *plan.folds]
    named = {reader for each in cast for reader in each.consumers}
    values = {value for op in graph.ops for value in op.values} | {op.key for op in graph.ops}
    outputs = {f"output:{index}" for index in range(len(graph.outputs))}
    lost = sorted({each.value for each in cast} - values)
    lost += sorted(named - set(present) - outputs - set(gone))
    lost += sorted(set(plan.autocast) - set(present))
    if plan.autocast and plan.autocast_device not in ("cpu", "cuda"):
        yield f"autocast_device is {plan.autocast_device or 'not given'}; expected cpu or cuda"
    stored = {op.key for op in graph.ops if op.kind in ("parameter", "buffer", "constant")}
    odd = sorted({each.value for each in plan.folds} - stored - set(lost))
    if odd:
        yield f"folds name {_listed(odd)}, which is no parameter, buffer or constant"
    if lost and not gone:
        yield f"casts name {_listed(lost)}, which the model does not have"
    if not (gone or new or lost) and plan.graph_digest and plan.graph_digest != digest(graph):
        yield "the ops are the same, but how they are connected, their shapes or arguments changed"


def _pins(plan: Plan, graph: Graph, policy: Policy, asked: Labels) -> Iterator[str]:
    planned = dict(plan.formats)
    for op, demand in zip(graph.ops, asked.demand, strict=True):
        has = planned.get(op.key)
        if has is None or demand == FREE or op.kind in ("parameter", "buffer", "constant"):
            continue
        captured = [tensor.format for tensor in op.outputs if is_float(tensor.format)]
        fixed = policy.high if policy.high in captured else captured[0]
        wanted = {CAPTURED: fixed, HIGH: policy.high, LOW: policy.low}.get(demand, demand)
        if has != wanted:
            why = "cannot leave" if demand == CAPTURED else f"is pinned by policy {policy.name} to"
            yield f"{op.key} {why} {wanted}, the plan has {has}"


def _kept_high(plan: Plan, decisions: Iterable[Decision]) -> Iterator[Decision]:
    """The decisions, high where the plan keeps an op high that no pin wants low."""
    planned = dict(plan.formats)
    swapped = {key for swap in plan.swaps for key in swap.ops}
    for each in decisions:
        lowered = each.chosen == plan.low or each.swapped
        kept = lowered and planned.get(each.op) == plan.high and each.op not in swapped
        free = not each.classification.startswith("pin:") and each.classification != "fixed"
        yield replace(each, chosen=plan.high) if kept and free else each


def _kernels(plan: Plan, graph: Graph, row: Hardware) -> Iterator[str]:
    planned = dict(plan.formats)
    captured = {op.key: {tensor.format for tensor in op.outputs} for op in graph.ops}
    for op in graph.ops:
        has = planned.get(op.key, "")
        if not has or not op.operands or has in captured[op.key]:
            continue
        for backward in (False, True)[: 2 if graph.mode == "training" else 1]:
            if ops.has_kernel(op.op, has, row.kernels, backward) is False:
                direction = "backward " if backward else ""
                yield f"{op.key}: {op.op} has no {direction}kernel for {has} on {row.name}"


def _swaps(plan: Plan, decided: Decided, asked: Labels, graph: Graph, row: Hardware) -> Iterator[str]:
    """A linear that the policy leaves free may be swapped by whatever its backend still offers: a search found it."""
    free = {each.op for each in decided.decisions if not each.chosen}
    ops_by_key = {op.key: op for op in graph.ops}
    offered = {swap.op: swap for swap in decided.swaps}
    refused = {refusal.op: refusal.reason for refusal in (*decided.refusals, *asked.refusals)}
    for swap in plan.swaps:
        now: Swap | Refusal | None = offered.get(swap.op)
        if now is None and swap.op in free and swap.op not in refused:
            now = backends.get(swap.backend).offer(ops_by_key[swap.op], graph, swap.recipe, plan.mode, row)
            if isinstance(now, Refusal):
                yield f"{swap.op} cannot be swapped: {now.reason}"
                continue
        assert not isinstance(now, Refusal)
        if now is None or swap.op in refused:
            yield f"{swap.op} cannot be swapped: {refused.get(swap.op, 'the policy does not ask for it')}"
        elif (now.backend, now.recipe) != (swap.backend, swap.recipe):
            yield f"{swap.op} is swapped for {swap.backend} {swap.recipe}, the policy wants {now.backend} {now.recipe}"


def _casts(plan: Plan, reads: Readings, asked: Labels, policy: Policy) -> Iterator[str]:
    """Every reader must get what it needs."""
    planned: Mapping[str, str] = dict(plan.formats)
    runs = [
        CAPTURED if demand == CAPTURED else planned.get(op.key, "")
        for op, demand in zip(reads.graph.ops, asked.demand, strict=True)
    ]
    for value, reader, need, has in unmet(reads, asked, runs, policy, plan):
        yield f"{reader} needs {value} in {need} and would read {has}: the plan lacks a cast"


def _listed(keys: list[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def _counted(keys: list[str]) -> str:
    return f"{len(keys)} {'op' if len(keys) == 1 else 'ops'} ({_listed(keys)})"


def _are(keys: list[str]) -> str:
    return "is" if len(keys) == 1 else "are"
