"""A number next to one that rounds to one in the low format: for PA108.

Takes the look-ups of `vanish`; tells where `1 - 1e-6` is written (a clamp, a factor, `0.999999 - p`) and which op it
keeps from its singularity: a logit, an atanh, log1p of the negative, a logarithm or a division of one minus it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from precision_audit import ops
from precision_audit.formats import dtype_of
from precision_audit.records import Op
from precision_audit.rules.families import base
from precision_audit.rules.reach import adapts, numbers
from precision_audit.rules.vanish import STEPS, Site, Vanish

# Singular at one, at minus one: where an eps next to one is what keeps the argument away.
_AT_ONE = frozenset({
    "logit", "special_logit", "atanh", "arctanh", "erfinv", "special_erfinv", "acos", "arccos", "asin", "arcsin",
})  # fmt: skip
_AT_MINUS_ONE = frozenset({"log1p", "special_log1p", "atanh", "arctanh", "erfinv", "special_erfinv", "acos", "asin"})


def next_to_one(vanish: Vanish) -> Iterator[Site]:
    """Every number close to one that rounds to one and guards an op singular there."""
    for op in vanish.context.graph.ops:
        found = _near_one(vanish, op)
        if found is None or not vanish.reach.free(op):
            continue
        state = "zero" if base(op) == "rsub" else "one"
        guarded = next((o.value for o in op.operands if not _constant_near_one(vanish, o.value)), "")
        site = next(iter(_at_one(vanish, op, state)), None)
        if site is not None:
            yield Site(op, found, guarded, *site)


def _near_one(vanish: Vanish, op: Op) -> float | None:
    if base(op) not in ("clamp", "clamp_max", "minimum", "min", "fmin", "mul", "rsub", "where", "masked_fill"):
        return None
    for name, number in numbers(op):
        if name not in ("min", "min_val") and _rounds_to_one(vanish, number) and not adapts(op, number):
            return number
    near = (o.value for o in op.operands if _constant_near_one(vanish, o.value))
    return next((vanish.context.ranges[value].amax for value in near), None)


def _constant_near_one(vanish: Vanish, value: str) -> bool:
    seen = vanish.context.ranges.get(value)
    if seen is None or seen.basis != "PROVED" or seen.lowest != seen.highest:
        return False
    return _rounds_to_one(vanish, seen.amax)


def _rounds_to_one(vanish: Vanish, number: float) -> bool:
    return 0.5 < number < 1.0 and float(torch.tensor(number, dtype=dtype_of(vanish.context.low.name))) == 1.0


def _at_one(vanish: Vanish, op: Op, state: str) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    waiting: list[tuple[Op, str, tuple[Op, ...]]] = [(op, state, ())]
    seen = {op.key}
    while waiting:
        at, state, between = waiting.pop(0)
        for value in at.values:
            for reader in vanish.context.readers.get(value, ()):
                if _singular_there(vanish, reader, value, state):
                    yield reader, between
                    continue
                after = _state_after(reader, value, state)
                if after and reader.key not in seen and len(between) < STEPS:
                    seen.add(reader.key)
                    waiting.append((reader, after, (*between, reader)))


def _singular_there(vanish: Vanish, op: Op, value: str, state: str) -> bool:
    if state == "zero":
        return vanish.is_singular(op, value)
    return base(op) in (_AT_ONE if state == "one" else _AT_MINUS_ONE)


def _state_after(op: Op, value: str, state: str) -> str:
    """Where a number next to one, to minus one or to zero is after `op`; "" where it is lost from sight."""
    row, name = ops.row(op.op), base(op)
    given = dict(op.attributes).get("other")
    if row is not None and row.kind in ("view_layout", "cast", "gather_index"):
        return state
    if name in ("clamp", "clamp_min", "clamp_max"):
        return state
    if name == "neg" or (name == "mul" and given in (-1, -1.0)):
        return {"one": "minus one", "minus one": "one", "zero": "zero"}[state]
    if name == "rsub" and given in (1, 1.0):
        return {"one": "zero"}.get(state, "")
    if name == "sub" and given in (1, 1.0) and len(op.operands) == 1:
        return {"one": "zero"}.get(state, "")
    if name == "sub" and len(op.operands) == 2 and op.operands[1].value == value:
        return {"one": "zero"}.get(state, "")  # ones - p
    if name == "add" and given in (1, 1.0):
        return {"minus one": "zero"}.get(state, "")
    if state == "zero" and name in ("sqrt", "mul", "abs", "pow"):
        return "zero"
    if state == "one" and name in ("square", "pow", "sqrt"):
        return "one"
    return ""
