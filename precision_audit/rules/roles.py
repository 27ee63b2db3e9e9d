"""What a linear is for, told by the graph around it first and by its name second: shared by the rules about swaps.

Takes a context; gives a word for a linear's part in the model, or nothing, and whether a choice is made by its output.

    router      a choice (top-k, argmax) is made by its output, and what is computed after depends on it
    head        a choice that is an output is made by its output
    modulation  its output scales or shifts what has more rows than itself, as adaLN and FiLM do
    last, first its output is an output of the model; its input an input
    gate        its module is called gate or router, and nothing above is true

Names alone make nobody sensitive: the rules ask for evidence.
"""

from __future__ import annotations

import math
import re

from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.records import Op
from precision_audit.rules import Context

_CHOICES = frozenset({"topk", "argmax", "argmin", "sort", "argsort", "max", "min", "kthvalue", "multinomial"})
_KEEPS_ORDER = frozenset(
    {"softmax", "_softmax", "log_softmax", "_log_softmax", "sigmoid", "log_sigmoid", "tanh", "relu", "neg", "exp"}
    | {"mul", "div", "add", "sub", "clone", "dropout", "clamp"}
)
_MODULATES = frozenset({"mul", "add", "addcmul", "sub"})
_NAMED = re.compile(r"(^|[._])(ada_?ln|adanorm|modulation|mod|film|gate|router|gating)([._\d]|$)", re.IGNORECASE)
_FAR = 12  # ops between a linear and what tells its part


def role(context: Context, op: Op) -> str:
    """One of the words above, or ""."""
    choice = chooses(context, op)
    if choice is not None:
        free = set(choice.values) - set(context.graph.outputs)
        return "router" if any(context.readers.get(value) for value in free) else "head"
    if _modulates(context, op):
        return "modulation"
    named = _NAMED.search(op.module)
    if named is not None:
        return "router" if named[2].lower() in ("router", "gating") else _word(named[2].lower())
    if _reaches_output(context, op):
        return "last"
    return "first" if _from_input(context, op) else ""


def _word(name: str) -> str:
    return "gate" if name == "gate" else "modulation"


def chooses(context: Context, op: Op) -> Op | None:
    """The op that chooses by the linear's output, which only ops that keep its order have changed."""
    waiting, seen = [(op, 0)], {op.key}
    while waiting:
        at, far = waiting.pop(0)
        for value in at.values:
            for reader in context.readers.get(value, ()):
                if reader.key in seen or far >= _FAR:
                    continue
                seen.add(reader.key)
                if _base(reader) in _CHOICES and _picks(reader):
                    return reader
                if _passes(context, reader) or (_base(reader) in _KEEPS_ORDER and _alone(context, reader)):
                    waiting.append((reader, far + 1))
    return None


def _base(op: Op) -> str:
    return op.op.removesuffix("_") if not op.op.startswith("_") else op.op


def _picks(op: Op) -> bool:
    """Whether integers come out: `max` of a whole tensor decides nothing."""
    return any(not is_float(tensor.format) for tensor in op.outputs)


def _passes(context: Context, op: Op) -> bool:
    row = ops.row(op.op)
    return row is not None and row.kind in ("view_layout", "cast") and bool(op.operands)


def _alone(context: Context, op: Op) -> bool:
    """Whether its other operands depend on no activation: a bias, a temperature."""
    activations = [each.value for each in op.operands if context.maker[each.value].kind not in _STATE]
    return len(set(activations)) == 1


_STATE = ("parameter", "buffer", "constant")


def _modulates(context: Context, op: Op) -> bool:
    """Whether the output, in parts perhaps, meets a tensor of more elements and the same channels."""
    own = math.prod(op.outputs[0].hint)
    waiting, seen = [(op, 0)], {op.key}
    while waiting:
        at, far = waiting.pop(0)
        for value in at.values:
            for reader in context.readers.get(value, ()):
                if reader.key in seen or far >= _FAR:
                    continue
                seen.add(reader.key)
                if _passes(context, reader) or (_base(reader) in ("add", "mul") and _single(context, reader)):
                    waiting.append((reader, far + 1))
                elif _base(reader) in _MODULATES and len(reader.operands) > 1:
                    size, part = math.prod(reader.outputs[0].hint), math.prod(context.tensors[value].hint)
                    others = [each.value for each in reader.operands if each.value != value]
                    larger = [o for o in others if math.prod(context.tensors[o].hint) == size > part]
                    if larger and own >= part and not all(context.maker[o].kind in _STATE for o in larger):
                        return True
    return False


def _single(context: Context, op: Op) -> bool:
    """`1 + scale`: a number, or a tensor without axes, besides."""
    return sum(len(context.tensors[each.value].hint) > 0 for each in op.operands) == 1


def _reaches_output(context: Context, op: Op) -> bool:
    at: Op | None = op
    for _ in range(_FAR):
        if at is None:
            return False
        if set(at.values) & set(context.graph.outputs):
            return True
        after = [reader for value in at.values for reader in context.readers.get(value, ())]
        at = after[0] if len(after) == 1 and _passes(context, after[0]) else None
    return False


def _from_input(context: Context, op: Op) -> bool:
    at = context.maker.get(context.operand(op, "input"))
    for _ in range(_FAR):
        if at is None or at.kind == "input":
            return at is not None
        at = context.maker[at.operands[0].value] if _passes(context, at) else None
    return False
