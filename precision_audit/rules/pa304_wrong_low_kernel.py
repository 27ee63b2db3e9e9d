"""PA304 wrong results of a low kernel

What it does: reports an op whose kernel is known to give wrong numbers in the low format, or was seen to: it should
only round, and is off by a tenth or more on the same rounded inputs.
Why it is a hazard: nothing raises and nothing warns. grid_sample on the CPU counts pixels in 16 bits when the picture
is in a 16-bit format: beyond 32768 pixels it reads outside the picture, and an image of ones comes back as 1e38 or NaN.
What to do: run the op, and what makes its coordinates, in fp32. This tool's conversion does.
References: pytorch/pytorch issue 127224 and pull request 134812.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from precision_audit import ops
from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.reach import numbers
from precision_audit.rules.upstream import Upstream

# Pixels of one picture that an offset of 16 bits with a sign can count.
_PIXELS = 1 << 15
_SOURCE = "pytorch/pytorch issue 127224"

_WRONG = 0.1  # relative L2 that no rounding explains
# Ops of these arithmetics round each number once at most. Steps are exact on what they are given, save where a quotient
# is rounded before it is cut.
_ROUNDS = ("none", "exact", "rounding")
_STEPS = ("floor_divide", "remainder", "fmod", "div", "round")


def check(context: Context) -> Iterator[Finding]:
    for op in context.computed():
        made = _known(op, context) or _seen(op, context)
        if made is None:
            continue
        message, evidence = made
        grid = [operand.value for operand in op.operands if operand.argument == "grid"]
        coordinates = Upstream(context).region(grid).nearest(products=False) if grid else []
        yield found(
            __name__,
            "error",
            op,
            message,
            evidence,
            remedy=f"run {op.op} and what makes its coordinates in {context.policy.high}",
            pins=(op.key, *coordinates),
        )


def _known(op: Op, context: Context) -> tuple[str, Evidence] | None:
    if (
        context.hardware.kernels != "cpu"
        or context.low.name not in ("bf16", "fp16")
        or context.policy.autocast == "cpu"
    ):
        return None
    picture = context.operand(op, "input")
    shape = context.tensors[picture].hint if picture else ()
    if not op.op.startswith("grid_sampler") or len(shape) != 4 or prod(shape[2:]) <= _PIXELS:
        return None
    pixels = prod(shape[2:])
    said = f"a picture of {shape[2]} x {shape[3]} → the {context.low.name} kernel on the CPU reads outside it"
    text = f"its offsets have 16 bits: {_PIXELS} pixels at most ({_SOURCE})"
    return f"{op.op}: {said}", Evidence("PROVED", text, (("pixels", float(pixels)), ("limit", float(_PIXELS))))


def _seen(op: Op, context: Context) -> tuple[str, Evidence] | None:
    row = ops.row(op.op)
    if context.hardware.kernels != "cpu":  # what was seen, was seen here
        return None
    if any(numbers(op)):  # a number written in the code is rounded too, which is not the kernel's doing
        return None
    if row is None or op.op in _STEPS or (row.arithmetic not in _ROUNDS and row.kind != "interp_grid"):
        return None
    for value in op.values:
        seen, held = context.beside.get(value), context.ranges.get(value)
        if seen is None or held is None or seen.raised or seen.format != context.low.name or seen.fresh < _WRONG:
            continue
        fits = _fits(held.amax, context) and all(_fits(each, context) for each in _sizes(op, context))
        read = [context.beside[each.value] for each in op.operands if each.value in context.beside]
        if fits and not seen.lost and not any(each.lost for each in read):  # what is lost, other rules tell
            off = f"{100 * seen.fresh:.2g} % off on the same rounded inputs"
            said = f"{op.op}: {off} → wrong results in {context.low.name}"
            text = "the low kernel beside the captured format's, on the example"
            return said, Evidence("OBSERVED", text, (("error", seen.fresh), ("limit", _WRONG)))
    return None


def _sizes(op: Op, context: Context) -> list[float]:
    return [context.ranges[each.value].amax for each in op.operands if each.value in context.ranges]


def _fits(amax: float, context: Context) -> bool:
    """Neither too large nor lost below the smallest normal number, which other rules tell."""
    return amax == 0.0 or (context.low.min_normal or 0.0) <= amax <= context.low.max_finite


def bad() -> Example:
    import torch
    from torch import nn
    from torch.nn import functional

    class Turned(nn.Module):
        def forward(self, image: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
            grid = functional.affine_grid(turn, list(image.shape), align_corners=True)
            return functional.grid_sample(image, grid, align_corners=True)  # PA304

    turn = torch.tensor([[[0.98, -0.17, 0.0], [0.17, 0.98, 0.0]]])
    return Example(Turned(), (torch.ones(1, 1, 300, 300), turn))


def good() -> Example:
    import torch
    from torch import nn

    class Resized(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(image, scale_factor=0.5, mode="bilinear")

    return Example(Resized(), (torch.ones(1, 1, 300, 300),))
