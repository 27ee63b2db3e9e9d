"""Infinities that make no difference: taken back, or taken for what the number meant.

Takes what lies beyond the low range and what the low model made of it; says whether the infinity is gone again before
anything else reads it. Judges by the example, so without one nothing is absorbed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from precision_audit.formats import is_float
from precision_audit.records import Op, Operand, Range
from precision_audit.rules import Context
from precision_audit.rules.families import base

if TYPE_CHECKING:
    from precision_audit.rules.reach import Reach

_ATTENTION = "scaled_dot_product_attention"
# Ops that put a mask beside numbers: whether an element is infinite then hangs on the mask alone.
_BESIDE = frozenset({"add", "sub", "where", "masked_fill", "pad", "constant_pad_nd"})
# Between a product and the mask: what keeps scores scores.
_KEEPS = frozenset({
    "mul", "div", "neg", "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "contiguous", "tanh",
    "unflatten", "flatten", "select", "slice",
})  # fmt: skip
_SOFTENS = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax"})
_ROOTS = frozenset({"rsqrt", "sqrt", "pow"})  # what is left of an infinity there is no small thing
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


def settled(reach: Reach, value: str) -> bool:
    """Whether the value is a mask whose infinities are at the same places for all inputs, up to the softmax: a causal
    mask, of which the example has shown that no row is masked as a whole. Whatever reads it hangs on no input, but for
    one op that puts it beside scores, products of the model, which a softmax alone reads. Not where a size is open, nor
    where the model raises, once cast, on what descends from it."""
    context = reach.context
    moving = context.moving
    if value in moving or context.graph.symbols or context.graph.mode == "training":
        return False
    keys, waiting = set[str](), [value]
    while waiting:
        at = waiting.pop()
        if at in context.graph.outputs or not context.readers.get(at):
            return False
        for reader in context.readers[at]:
            if reader.mutates or not any(is_float(tensor.format) for tensor in reader.outputs):
                return False
            keys.add(reader.key)
            others = [each for each in reader.operands if each.value in moving]
            if not others:
                waiting.extend(reader.values)
            elif not (_meets_scores(reach, reader, others) and _softened(context, reader, keys)):
                return False
    return keys.isdisjoint(trap.op for trap in context.facts.traps)


def settled_by(reach: Reach, op: Op) -> bool:
    """The same of an op that writes a number at places that hang on no input: `where(future, -1e9, scores)`."""
    context, moving = reach.context, reach.context.moving
    others = [each for each in op.operands if each.value in moving]
    where = [each.value for each in op.operands if each.argument in ("condition", "mask")]
    fixed = bool(where) or base(op) in ("pad", "constant_pad_nd")
    fits = fixed and moving.isdisjoint(where) and not context.graph.symbols and not op.mutates
    keys = {op.key}
    if not fits or context.graph.mode == "training" or not _meets_scores(reach, op, others):
        return False
    return _softened(context, op, keys) and keys.isdisjoint(trap.op for trap in context.facts.traps)


def _meets_scores(reach: Reach, op: Op, others: list[Operand]) -> bool:
    """Whether the mask meets nothing of the inputs but scores: numbers, in range, of a product."""
    context = reach.context
    if base(op) == _ATTENTION:
        return all(each.argument != "attn_mask" for each in others)
    if base(op) not in _BESIDE or len(others) != 1:
        return False
    value = others[0].value
    while True:
        seen, maker = context.ranges.get(value), context.maker[value]
        if seen is None or seen.infinite or reach.far(value) or not is_float(context.tensors[value].format):
            return False
        if maker.kind == "matmul":
            return True
        moved = [each for each in maker.operands if each.value in context.moving]
        if base(maker) not in _KEEPS or len(moved) != 1:
            return False
        value = moved[0].value


def _softened(context: Context, op: Op, keys: set[str]) -> bool:
    """Whether a softmax is all that reads the op's result; attention has it inside."""
    if base(op) == _ATTENTION:
        return True
    for value in op.values:
        for reader in context.readers.get(value, ()):
            keys.add(reader.key)
            if value in context.graph.outputs or base(reader) not in (
                "softmax",
                "_softmax",
                "log_softmax",
                "_log_softmax",
            ):
                return False
    return True


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
        readers = context.readers.get(value, ())
        if any(base(reader) in _ROOTS for reader in readers):
            return False
        for made in (made for reader in readers for made in reader.values):
            found = context.beside.get(made)
            if found is None or (found.drift > _AS_BEFORE and not found.lost):
                return False
            if found.lost and made not in known:
                waiting.append(made)
            known.add(made)
    return True


def _subtracted(context: Context, value: str) -> bool:
    """Whether the value is only ever taken from something."""
    readers = context.readers.get(value, ())
    return bool(readers) and all(op.op in ("sub", "sub_") and op.operands[0].value != value for op in readers)
