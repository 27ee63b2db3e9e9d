"""PA102 overflow inside an op

What it does: reports an op that leaves the range in what it computes on its way and never shows: the squares of a norm,
the products of attention before their scale, a sum. Not where the device's kernel keeps such numbers in fp32.
Why it is a hazard: inputs and outputs all look harmless, and the result is zero, infinite or NaN nevertheless.
What to do: keep the op in fp32, or scale its input.
References: the op table says which kernels accumulate in fp32 on which device.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit import ops
from precision_audit.formats import FORMATS
from precision_audit.records import Evidence, Finding, Inner, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import base
from precision_audit.rules.limits import overflows_at
from precision_audit.rules.reach import Reach
from precision_audit.rules.vanish import GUARDED, Vanish

_COMPOSITE = ("norm", "reduction", "softmax", "attention", "matmul", "conv", "loss", "rnn")
_SQUARES = ("vector_norm", "variance")
_GARBAGE = 0.1  # relative error from which a result says nothing any more


def check(context: Context) -> Iterator[Finding]:
    vanish = Vanish(context)
    reach = vanish.reach
    for op in context.computed():
        if not reach.free(op) or any(reach.far(value) for value in (*reach.inputs(op), *op.values)):
            continue  # seen from outside, or inherited
        inner = _beyond(context, op)
        lost = _lost(context, vanish, op)
        if inner is not None or lost:
            yield _finding(context, reach, op, inner, lost)


def _beyond(context: Context, op: Op) -> Inner | None:
    """The largest inner number that the format it is held in cannot hold."""
    low, kernels = context.policy.low, context.hardware.kernels
    # A kernel of which nothing is known is taken to sum in fp32, as nearly all do.
    formats = {"own": low, "accumulator": ops.accumulates_in(op.op, low, kernels) or context.policy.high}
    over = [
        each
        for each in context.inner.get(op.key, ())
        if each.kernels in ("", kernels) and each.amax >= overflows_at(FORMATS[formats[each.held]])
    ]
    return max(over, key=lambda each: each.amax, default=None)


def _lost(context: Context, vanish: Vanish, op: Op) -> str:
    """What the low run of a composite op shows of it: elements lost, or squares gone and garbage left."""
    row = ops.row(op.op)
    if row is None or row.kind not in _COMPOSITE:
        return ""
    largest = max((context.ranges[v].amax for v in vanish.reach.inputs(op) if v in context.ranges), default=0.0)
    overflows = largest * largest * 4 >= context.low.max_finite
    if base(op) in GUARDED and not overflows:
        return ""  # its eps vanishes: PA107
    fresh = max((context.beside[v].fresh_lost for v in op.values if v in context.beside), default=0)
    if fresh and vanish.lost_first(op):
        return f"{fresh} elements lost on the example, its inputs and outputs in range"
    error = max((context.beside[v].fresh for v in op.values if v in context.beside), default=0.0)
    squares = row.kind == "norm" or row.subclass in _SQUARES
    if squares and error >= _GARBAGE and overflows:
        return f"relative error {error:.2g} on the example, squares of {largest:.4g} inside"
    return ""


def _finding(context: Context, reach: Reach, op: Op, inner: Inner | None, lost: str) -> Finding:
    limit = context.low.max_finite
    numbers: tuple[tuple[str, float], ...] = (("limit", limit),)
    what, text = "what it computes inside", lost
    if inner is not None:
        what = f"{inner.what} up to {inner.amax:.4g}"
        numbers = (("amax", inner.amax), ("limit", limit), ("batch", float(inner.batch)))
        text = f"{what} inside, limit {limit:.6g}, batch {inner.batch}" + (f"; {lost}" if lost else "")
    return found(
        __name__,
        "note" if all(value in reach.shielded for value in op.values) else "error",
        op,
        f"{base(op)}: {what} → infinite in {context.policy.low}",
        Evidence("OBSERVED", text, numbers),
        remedy="keep the op in high precision, or scale what it reads",
        pins=(op.key,),
    )


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.nn.functional.mse_loss(x, -x)  # PA102
            return y

    return Example(Model(), (torch.tensor([300.0] + [1.0] * 99),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.nn.functional.mse_loss(x, -x)
            return y

    return Example(Model(), (torch.tensor([30.0] + [1.0] * 99),), policy="fp16-inference")
