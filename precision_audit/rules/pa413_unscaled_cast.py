"""PA413 cast to fp8 without a scale

What it does: reports numbers beyond fp8's range that are cast to it as they are: by the model's own `.to(float8)`, or
by a policy that pins a linear to fp8.
Why it is a hazard: e4m3 ends at 448. torch clips what lies beyond to 448, infinities included, without a word (before
2.12 it made NaN of it); e5m2 makes infinity of what lies beyond 57344. Numbers of 1500 come out wrong by a factor.
What to do: divide by amax / 448 first and multiply after, or let a module do both (`class: fp8-eligible` swaps linears
for Float8Linear); or leave the op in the low format.
References: jax-ml/ml_dtypes issue 400; pytorch/pytorch PR 178817; torchao float8 README on dynamic scaling.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_audit.analyse.histogram import shares
from precision_audit.formats import FORMATS, Format
from precision_audit.records import Evidence, Finding, Op, Range
from precision_audit.rules import Context, Example, found
from precision_audit.rules.swapping import percent

if TYPE_CHECKING:
    from torch import nn

_PRODUCTS = ("matmul", "conv")


def check(context: Context) -> Iterator[Finding]:
    for op in context.computed():
        made = FORMATS.get(op.outputs[0].format) if op.outputs else None
        if made is not None and made.name.startswith("fp8") and op.operands:
            yield from _beyond(context, op, made, (op.operands[0].value,), pinned=False)
        pinned = context.matches[op.key].rule.classification if op.key in context.matches else ""
        if pinned.startswith("pin:fp8") and op.kind in _PRODUCTS:
            values = tuple(each.value for each in op.operands if each.argument != "bias")
            yield from _beyond(context, op, FORMATS[pinned[4:]], values, pinned=True)


def _beyond(context: Context, op: Op, format: Format, values: tuple[str, ...], pinned: bool) -> Iterator[Finding]:
    seen = [context.ranges[value] for value in values if value in context.ranges]
    worst = max(seen, key=lambda each: shares(each, format).overflow, default=None)
    if worst is None:
        return
    share = shares(worst, format).overflow
    if not share:
        return
    after = {"max": f"clipped to {format.max_finite:g}", "inf": "infinite", "nan": "NaN"}[format.overflow or "max"]
    yield found(
        __name__,
        "warning" if format.overflow == "max" else "error",
        op,
        f"{op.module + ': ' if op.module else ''}{_what(context, worst)} up to {worst.amax:.3g} is cast to "
        f"{format.name} without a scale → {percent(share)} of it is {after}",
        Evidence(
            "PROVED" if worst.basis == "PROVED" else "OBSERVED",
            f"largest {worst.amax:.3g}, {format.name} ends at {format.max_finite:g}",
            (("amax", worst.amax), ("limit", format.max_finite), ("share", share)),
        ),
        remedy="class: fp8-eligible, which scales, or the low format"
        if pinned
        else f"scale first: x / (amax / {format.max_finite:g}), and multiply after",
        refuses=(op.key,) if pinned else (),  # what has no kernel runs low
    )


def _what(context: Context, seen: Range) -> str:
    maker = context.maker[seen.value]
    return {"parameter": seen.value, "buffer": seen.value, "input": "an input"}.get(maker.kind, f"the {maker.op}")


def bad() -> Example:
    return _example(scaled=False)


def good() -> Example:
    return _example(scaled=True)


def _example(scaled: bool) -> Example:
    import torch
    from torch import nn

    class Stored(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not scaled:
                return x.to(torch.float8_e4m3fn).to(x.dtype)  # PA413
            scale = x.abs().amax().clamp(min=1e-12) / 448
            return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale

    x = 700 * torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    model: nn.Module = Stored()
    return Example(model, (x,))
