"""PA412 nothing to scale by

What it does: reports a linear that is to be swapped and one of whose operands is zero throughout, so that its scale is
a quotient by zero; and a scale that the model itself computes as a quotient of an absolute maximum, without a least
value, for a cast to fp8 or int8.
Why it is a hazard: 448 / 0 is infinite and 0 times that is NaN. LoRA's B is zero until the first step, padding makes
rows of zeros, and dead features columns. torchao's fp8 and int8 casts take at least 1e-12 for the maximum and give
zeros, TransformerEngine's scales are finite in all its recipes; torchao's NVFP4 has no such guard over the scale of the
tensor, nor has a scale written by hand.
What to do: clamp the maximum (`x.abs().amax(-1, keepdim=True).clamp(min=1e-12)`); leave a layer of zeros unswapped
under NVFP4.
References: torchao 0.18, float8/float8_utils.py (EPS) and prototype/mx_formats/nvfp4_tensor.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_audit.records import Evidence, Finding, Op, Severity
from precision_audit.rules import Context, Example, found
from precision_audit.rules.swapping import swapping

if TYPE_CHECKING:
    from torch import nn

_UNGUARDED = ("torchao_quantize", "nvfp4")  # backend, scheme
_LOW = ("fp8_", "int8", "uint8", "fp4_")
_MAXIMA = frozenset({"amax", "max", "aminmax", "linalg_vector_norm", "norm", "abs"})
_ON_THE_WAY = frozenset(
    {"clamp", "clip", "round", "mul", "div", "clamp_min", "clamp_max", "hardtanh"}
    | {"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "expand", "to", "_to_copy", "clone", "contiguous"}
)
_GUARDS = frozenset({"clamp", "clip", "clamp_min", "maximum", "add", "where", "max", "masked_fill", "nan_to_num"})
_FAR = 16


def check(context: Context) -> Iterator[Finding]:
    for each in swapping(context):
        for name in ("weight", "input"):
            operand = each.operand(name)
            if operand is None or operand.amax:
                continue
            lost = (each.recipe.backend, each.recipe.scheme) == _UNGUARDED
            after = "0 / 0, and the product is NaN" if lost else "finite, and the product is zero, as it should be"
            yield found(
                __name__,
                "error" if lost else "note",
                each.op,
                f"{each.name}: its {name} is zero throughout → its scale under {each.recipe.name} is {after}",
                Evidence("OBSERVED", f"amax of the {name} is 0 on the example", (("amax", 0.0),)),
                remedy=f"keep {each.name} in {context.policy.low} until its {name} is not zero" if lost else "",
                of=name,
                refuses=(each.op.key,) if lost else (),
            )
    yield from _by_hand(context)


def _by_hand(context: Context) -> Iterator[Finding]:
    told: set[str] = set()
    for op in context.computed():
        if not op.outputs or not op.outputs[0].format.startswith(_LOW) or not op.operands:
            continue
        for quotient, value in _quotients(context, op):
            maximum = _maximum(context, value)
            if quotient.key in told or maximum is None:
                continue
            told.add(quotient.key)
            yield _unguarded(context, quotient, maximum, op)


def _unguarded(context: Context, quotient: Op, maximum: Op, cast: Op) -> Finding:
    ranges = [context.ranges[value] for value in maximum.values if value in context.ranges]
    zeros = sum(each.zeros for each in ranges)
    severity: Severity = "error" if zeros else "note"
    seen = f"{zeros} groups of zeros on these inputs → NaN" if zeros else "a group of zeros would become NaN"
    return found(
        __name__,
        severity,
        quotient,
        f"{quotient.op}: the scale before the cast to {cast.outputs[0].format} is a quotient of {maximum.op} without a "
        f"least value; {seen}",
        Evidence("OBSERVED" if zeros else "PROVED", f"no clamp between {maximum.key} and {quotient.key}",
                 (("zero groups", float(zeros)),)),
        remedy="clamp the maximum: amax.clamp(min=1e-12)",
    )  # fmt: skip


def _quotients(context: Context, cast: Op) -> Iterator[tuple[Op, str]]:
    """Divisions, and what they divide by, among the ops that lead to the cast."""
    waiting, seen = [each.value for each in cast.operands], set[str]()
    for _ in range(_FAR):
        more: list[str] = []
        for value in waiting:
            op = context.maker[value]
            if op.key in seen:
                continue
            seen.add(op.key)
            if op.op == "div" and len(op.operands) > 1:
                yield op, op.operands[1].value
            elif op.op == "reciprocal":
                yield op, op.operands[0].value
            if op.op in _ON_THE_WAY:
                more += [each.value for each in op.operands]
        waiting = more


def _maximum(context: Context, value: str) -> Op | None:
    """The absolute maximum that a divisor comes from, with nothing on the way that keeps it from zero."""
    for _ in range(_FAR):
        op = context.maker[value]
        if op.op in ("amax", "max", "aminmax", "linalg_vector_norm"):
            return op if _of_sizes(context, op) and len(op.operands) == 1 else None
        # a factor is no guard, and what it multiplies comes first; `maximum(amax, eps)` is one
        if op.op in _GUARDS or op.op not in _ON_THE_WAY or not op.operands:
            return None
        value = op.operands[0].value
    return None


def _of_sizes(context: Context, op: Op) -> bool:
    return op.op == "linalg_vector_norm" or context.maker[op.operands[0].value].op == "abs"


def bad() -> Example:
    return _example(guard=0.0)


def good() -> Example:
    return _example(guard=1e-12)


def _example(guard: float) -> Example:
    import torch
    from torch import nn

    class Quantised(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            amax = x.abs().amax(-1, keepdim=True)
            if guard:
                amax = amax.clamp(min=guard)
            scale = amax / 448
            low = (x / scale).to(torch.float8_e4m3fn)  # PA412
            return low.to(x.dtype) * scale

    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    x[2] = 0.0
    model: nn.Module = Quantised()
    return Example(model, (x,))
