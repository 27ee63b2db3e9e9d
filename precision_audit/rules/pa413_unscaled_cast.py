"""PA413 cast to fp8 without a scale

What it does: reports numbers that are cast to fp8 as they are and lie beyond its range, or so low in it that the whole
is off by a tenth or more: by the model's own `.to(float8)`, by a write into a tensor that is kept in fp8
(`cache[:, :n] = k`), or by a policy that pins a linear to fp8.
Why it is a hazard: e4m3 ends at 448. torch clips what lies beyond to 448, infinities included, without a word (before
2.12 it made NaN of it); e5m2 makes infinity of what lies beyond 57344. Numbers of 1500 come out wrong by a factor.
Below 2^-6 e4m3 has steps of 2^-9 and no digits: of weights around 1e-3 a third is left at 2^-9, the rest is zero.
What to do: divide by amax / 448 first and multiply after, or let a module do both (`class: fp8-eligible` swaps linears
for Float8Linear); or leave the op in the low format.
References: jax-ml/ml_dtypes issue 400; pytorch/pytorch PR 178817; torchao float8 README on dynamic scaling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_audit.analyse.histogram import shares
from precision_audit.formats import FORMATS, Format, is_float
from precision_audit.records import Evidence, Finding, Op, Range
from precision_audit.rules import Context, Example, found
from precision_audit.rules.swapping import percent

if TYPE_CHECKING:
    from torch import nn

_PRODUCTS = ("matmul", "conv")
_CASTS = ("cast", "scatter_write")  # a write casts what it is given to what it writes into
_LOST = 0.1  # relative L2 of a cast whose numbers lie too low; e4m3 itself makes 0.03


def check(context: Context) -> Iterator[Finding]:
    for op in context.computed():
        made = FORMATS.get(op.outputs[0].format) if op.outputs else None
        if made is not None and made.name.startswith("fp8") and op.kind in _CASTS:
            yield from _judged(context, op, made, tuple(_wider(context, op)), pinned=False)
        pinned = context.matches[op.key].rule.classification if op.key in context.matches else ""
        if pinned.startswith("pin:fp8") and op.kind in _PRODUCTS:
            values = tuple(each.value for each in op.operands if each.argument != "bias")
            yield from _judged(context, op, FORMATS[pinned[4:]], values, pinned=True)


def _wider(context: Context, op: Op) -> Iterator[str]:
    """What the op casts: its operands in a wider float format."""
    for each in op.operands:
        format = context.tensors[each.value].format
        if is_float(format) and not format.startswith("fp8"):
            yield each.value


def _judged(context: Context, op: Op, format: Format, values: tuple[str, ...], pinned: bool) -> Iterator[Finding]:
    seen = [context.ranges[value] for value in values if value in context.ranges]
    if not seen:
        return
    largest = max(seen, key=lambda each: shares(each, format).overflow)
    smallest = max(seen, key=lambda each: coarse(each, format))
    if shares(largest, format).overflow:
        yield _beyond(context, op, format, largest, pinned)
    elif coarse(smallest, format) >= _LOST:
        yield _below(context, op, format, smallest, pinned)


def coarse(seen: Range, format: Format) -> float:
    """Relative L2 of what rounding to the steps below the smallest normal number costs, by powers of two: a step is
    off by its square over 12, and a number that becomes zero by itself. Numbers from 2**e to 2**(e+1) have 7/3 · 4**e
    as their mean square."""
    assert format.min_normal is not None and format.min_subnormal is not None
    apart = whole = 0.0
    for exponent, count in seen.histogram:
        square = count * 7 / 3 * 4.0**exponent
        whole += square
        if 2.0 ** (exponent + 1) <= format.min_subnormal / 2:
            apart += square
        elif 2.0**exponent < format.min_normal:
            apart += count * format.min_subnormal**2 / 12
    return math.sqrt(apart / whole) if whole else 0.0


def _beyond(context: Context, op: Op, format: Format, worst: Range, pinned: bool) -> Finding:
    share = shares(worst, format).overflow
    after = {"max": f"clipped to {format.max_finite:g}", "inf": "infinite", "nan": "NaN"}[format.overflow or "max"]
    return found(
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
        remedy=_remedy(format, pinned),
        refuses=(op.key,) if pinned else (),  # what has no kernel runs low
    )


def _below(context: Context, op: Op, format: Format, worst: Range, pinned: bool) -> Finding:
    error, zero = coarse(worst, format), shares(worst, format).underflow
    return found(
        __name__,
        "warning",
        op,
        f"{op.module + ': ' if op.module else ''}{_what(context, worst)} up to {worst.amax:.3g} is cast to "
        f"{format.name} without a scale → off by {percent(error)}, {percent(zero)} of its elements become zero",
        Evidence(
            "PROVED" if worst.basis == "PROVED" else "OBSERVED",
            f"largest {worst.amax:.3g}, {format.name} has steps of {format.min_subnormal:.3g} below "
            f"{format.min_normal:.3g}",
            (("amax", worst.amax), ("error", error), ("share", zero)),
        ),
        remedy=_remedy(format, pinned),
        refuses=(op.key,) if pinned else (),
    )


def _remedy(format: Format, pinned: bool) -> str:
    if pinned:
        return "class: fp8-eligible, which scales, or the low format"
    return f"scale first: x / (amax / {format.max_finite:g}), and multiply after"


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
