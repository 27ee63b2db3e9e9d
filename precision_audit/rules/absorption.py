"""Infinities that make no difference: taken back, or taken for what the number meant.

Takes what lies beyond the low range and what the low model made of it; says whether the infinity is gone again before
anything else reads it. Judges by the example, so without one nothing is absorbed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from precision_audit.formats import is_float
from precision_audit.plain import of_inputs
from precision_audit.records import Op, Range
from precision_audit.rules import Context

if TYPE_CHECKING:
    from precision_audit.rules.reach import Reach

_ATTENTION = "scaled_dot_product_attention"
# Ops that put a mask beside numbers: whether an element is infinite then hangs on the mask alone.
_BESIDE = frozenset({"add", "sub", "rsub", "where", "masked_fill", "pad", "constant_pad_nd", "maximum", "minimum"})
_AS_BEFORE = 1e-2  # relative error up to which a value is what it was


def absorbed(reach: Reach, op: Op, seen: Range | None) -> bool:
    """Only minus infinity comes of it, and it is lost again before anything else reads it: what a mask means."""
    context = reach.context
    if seen is None or not context.beside:
        return False
    if seen.highest >= reach.limit and not all(_subtracted(context, value) for value in op.values):
        return False
    waiting, known = list(op.values), set(op.values)
    while waiting:
        value = waiting.pop()
        if value in context.graph.outputs:
            return False
        for reader in context.readers.get(value, ()):
            for made in reader.values:
                if made in known or not is_float(context.tensors[made].format):
                    continue
                if reach.far(made) and context.ranges[made].highest < reach.limit:
                    known.add(made)
                    waiting.append(made)
                elif reach.lost(made) or reach.far(made):
                    return False
    return True


def settled(reach: Reach, op: Op, value: str) -> bool:
    """Whether the same elements are infinite whatever the inputs: a causal mask, of which the example has shown that no
    row is masked as a whole. Not where a mask may hold true infinities, with which it could fill one, nor where the
    model raises, once cast, on what descends from it."""
    context = reach.context
    moving = of_inputs(context.graph)
    if value in moving and value not in op.values:
        return False
    for operand in op.operands:
        beside = base_name(op) in _BESIDE and is_float(context.tensors[operand.value].format)
        beside = beside or (base_name(op) == _ATTENTION and operand.argument != "attn_mask")
        if operand.value in moving and (not beside or reach.far(operand.value)):
            return False
    return not _holds_infinities(context) and _below(context, op).isdisjoint(trap.op for trap in context.facts.traps)


def harmless(context: Context, op: Op) -> bool:
    """Whether the infinity is gone after its readers, and what they make of it is as it was. A gradient may still
    be infinite times zero."""
    seen = [context.beside[value].lost for value in op.values if value in context.beside]
    elsewhere = any(context.ranges[value].batch for value in op.values if value in context.ranges)
    if not any(seen) or elsewhere or context.graph.mode == "training":
        return False
    waiting, known = list(op.values), set(op.values)
    while waiting:
        value = waiting.pop()
        if value in context.graph.outputs:
            return False
        for made in (made for reader in context.readers.get(value, ()) for made in reader.values):
            found = context.beside.get(made)
            if found is None or (found.drift > _AS_BEFORE and not found.lost):
                return False
            if found.lost and made not in known:
                waiting.append(made)
            known.add(made)
    return True


def base_name(op: Op) -> str:
    return op.op.removesuffix("_")


def _holds_infinities(context: Context) -> bool:
    """Whether an infinity is written anywhere in the model, or was seen in it."""
    written = (
        isinstance(number, float) and math.isinf(number) for op in context.graph.ops for _, number in op.attributes
    )
    return any(written) or any(each.infinite for each in context.ranges.values())


def _below(context: Context, op: Op) -> frozenset[str]:
    """Keys of the op and all that descends from it."""
    found, values = {op.key}, set(op.values)
    for each in context.graph.ops:
        if any(operand.value in values for operand in each.operands):
            found.add(each.key)
            values.update(each.values)
    return frozenset(found)


def _subtracted(context: Context, value: str) -> bool:
    """Whether the value is only ever taken from something."""
    readers = context.readers.get(value, ())
    return bool(readers) and all(op.op in ("sub", "sub_") and op.operands[0].value != value for op in readers)
