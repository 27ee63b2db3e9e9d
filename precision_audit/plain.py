"""Plain low precision as a plan: everything low, and what `.half()` or `.bfloat16()` makes of a model.

Takes a graph, policy and device; gives a plan. They differ where the user has written a cast to the high format: what
is computed from it is high by promotion in a model that is cast (`as_cast`, the yardstick of every figure in a report),
while a plan may run it low (`everything_low`, what the analysis fears). Looks for no hazard and has no remedy.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from precision_audit import ops
from precision_audit.decide import Decided, decisions_alone
from precision_audit.formats import FORMATS, is_float
from precision_audit.plan import plan as cheapest
from precision_audit.policy.match import STATE
from precision_audit.records import Graph, Hardware, Plan, Policy, Rule, Tensor

# Ops that raise in torch when a number written into them does not fit the tensor's format.
REFUSES = frozenset(
    {"masked_fill", "full", "full_like", "new_full", "fill", "constant_pad_nd", "pad", "index_fill", "scatter"}
    | {"clamp", "clamp_min", "clamp_max", "hardtanh", "threshold"}
)
_GEMMS = ("matmul", "conv", "attention", "rnn")


def everything_low(
    graph: Graph, policy: Policy, hardware: Hardware, kept: Collection[str] = frozenset()
) -> Plan | None:
    """Every op that has a low kernel runs low, but the ops `kept`. None where a policy has no low format, or nothing
    was captured in the high one."""
    return _plan(graph, policy, hardware, kept)


def as_cast(graph: Graph, policy: Policy, hardware: Hardware) -> Plan | None:
    """The same, but for what is high by the user's own casts."""
    high = high_by_casts(graph, policy.high)
    return _plan(graph, policy, hardware, {op.key for op in graph.ops if high.intersection(op.values)})


def high_by_casts(graph: Graph, high: str) -> frozenset[str]:
    """Values in the high format because the user said so, directly or by promotion."""
    found: set[str] = set()
    tensors: dict[str, Tensor] = {}
    for op in graph.ops:
        tensors.update(zip(op.values, op.outputs, strict=True))
        if op.kind in STATE:
            continue
        if op.fixed == "explicit cast":
            if any(tensor.format == high for tensor in op.outputs):
                found.update(op.values)
            continue
        if not op.follows and not any(_has_fraction(tensors.get(each.value)) for each in op.operands):
            # a factory, arithmetic on integers: of the default format, whatever the model is in
            found.update(value for value in op.values if tensors[value].format == high)
            continue
        row = ops.row(op.op)
        operands = [each for each in op.operands if each.value in tensors and tensors[each.value].format == high]
        read = [each.value for each in operands if tensors[each.value].shape]
        if op.op in ops.LIKE:  # `.to(x.dtype)` goes back, `.to(y)` and `type_as` go where y is
            read = [each.value for each in op.operands if each.argument == "other"]
        of = all if row is not None and row.kind in _GEMMS else any
        if read and of(value in found for value in read):
            found.update(op.values)
    return frozenset(found)


def _has_fraction(tensor: Tensor | None) -> bool:
    return tensor is None or is_float(tensor.format) or tensor.format.startswith("complex")


def lowerable(graph: Graph, policy: Policy) -> bool:
    """Whether any op was captured in the policy's high format, and nobody fixed it there."""
    computed = (op for op in graph.ops if op.kind not in STATE and not op.fixed)
    return any(tensor.format == policy.high for op in computed for tensor in op.outputs)


def of_inputs(graph: Graph) -> frozenset[str]:
    """Values that depend on an input of the model, or on a random draw."""
    found: set[str] = set()
    for op in graph.ops:
        if op.kind in ("input", "random") or any(operand.value in found for operand in op.operands):
            found.update(op.values)
    return frozenset(found)


def _refused(graph: Graph, low: str) -> set[str]:
    """Keys of ops that the user's code runs in the high format, whatever the model is in, since no input of it reaches
    them, and that write a number which the low format would refuse."""
    limit, moving = FORMATS[low].max_finite, of_inputs(graph)
    return {
        op.key
        for op in graph.ops
        if op.op.removesuffix("_") in REFUSES
        and not op.follows
        and moving.isdisjoint(op.values)
        and any(isinstance(number, float) and limit < abs(number) < math.inf for _, number in op.attributes)
    }


def _plan(graph: Graph, policy: Policy, hardware: Hardware, kept: Collection[str]) -> Plan | None:
    if policy.low == policy.high or not lowerable(graph, policy):
        return None
    kept = {*kept, *_refused(graph, policy.low)}
    low = Rule("everything", "plain", f"safe-in-{policy.low}")
    plain = replace(policy, name=f"plain {policy.low}", rules=(low,), autocast="", casts="shared", keep_io_types=True)
    deciding = {op.key for op in graph.ops if not any(is_float(each.format) for each in op.outputs)}
    decisions = tuple(
        replace(each, classification=f"keep-{policy.high}", chosen=policy.high)
        if each.op in kept and (each.classification != "fixed" or each.op in deciding)
        else each
        for each in decisions_alone(graph, plain, hardware)
    )
    return cheapest(graph, Decided(decisions, (), (), ()), plain, hardware)
