"""PA203 coordinates

What it does: reports sampling grids whose step in the low format is a part of a pixel worth seeing, and coordinates
that are made of a range and then rounded, subtracted or turned into indices.
Why it is a hazard: between 1/2 and 1 bf16 has 128 numbers, fewer than an image has columns: a grid over 512 pixels is
off by half of one, and the picture looks blocky. A rounded coordinate also falls into the next cell.
What to do: keep the grid, what makes it and the sampling in fp32; the image itself may be low.
References: `torch.nn.functional.grid_sample`; Spatial Transformer Networks (arXiv 1506.02025).
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import SAMPLERS
from precision_audit.rules.leaps import Leap, at_stake, base, evidence, half_step, leaps, severity, told, tolerance
from precision_audit.rules.upstream import Upstream

_SEEN, _BLOCKY = 0.03, 0.2  # pixels: worth a word; wrong for what is sampled there


def check(context: Context) -> Iterator[Finding]:
    if not at_stake(context):
        return
    upstream = Upstream(context)
    known = {leap.op.key: leap for leap in leaps(context, "PA203")}
    for op in context.computed():
        if op.op in SAMPLERS:
            yield from _sampled(context, upstream, op, known.get(op.key))
        elif op.key in known:
            leap = known[op.key]
            yield found(
                __name__,
                severity(leap),
                op,
                f"{base(op.key)} of coordinates → too coarse in {context.low.name}; {told(leap, context)}",
                evidence(leap, context),
                remedy="keep coordinates in fp32 until they are indices or weights",
                pins=leap.pins,
            )


def _sampled(context: Context, upstream: Upstream, op: Op, leap: Leap | None) -> Iterator[Finding]:
    """A grid: half a step of the format, in pixels. The grid may leave the image; what lies outside reads nothing."""
    grid, image = context.operand(op, "grid"), context.operand(op, "input")
    held = context.ranges.get(grid)
    if op.fixed == "region" or (held is None and context.facts.batches):
        return
    amax, basis = (held.amax, held.basis) if held else (1.0, "ASSUMED")
    size = max(context.tensors[image].hint[2:], default=0)
    pixels = half_step(context, min(amax, 0.999)) * size / 2
    made = context.maker[grid]
    written = made.fixed == "explicit cast" and all(upstream.ops[key].fixed for key in upstream.region([grid]).cheap)
    if (pixels < _SEEN and leap is None) or (written and op.fixed):
        return
    seen = upstream.seen(op)  # where the device's low kernel is no use, it says nothing of the grid
    useless = seen is None or seen.fresh >= tolerance(context)
    wrong = leap is not None or (useless and pixels >= _BLOCKY)
    yield found(
        __name__,
        "warning" if wrong and held else "note",
        op,
        f"a grid over {size} pixels → off by up to {pixels:.2g} of a pixel in {context.low.name}",
        Evidence(
            basis,
            f"half a step of {context.low.name} at the edge of the grid, in pixels",
            (("amax", amax), ("pixels", pixels), ("batch", float(held.batch if held else 0))),
        ),
        remedy="keep the grid, what makes it and the sampling in fp32",
        pins=(op.key, *upstream.region([grid]).nearest()),
    )


def bad() -> Example:
    import torch
    from torch import nn

    class Zoom(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            x = torch.linspace(-0.9, 0.9, image.shape[-1], dtype=image.dtype)
            y = torch.linspace(-0.9, 0.9, image.shape[-2], dtype=image.dtype)
            grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
            return nn.functional.grid_sample(image, grid[None], align_corners=True)  # PA203

    return Example(Zoom(), (torch.randn(1, 1, 256, 256),))


def good() -> Example:
    import torch
    from torch import nn

    class Zoom(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            theta = torch.tensor([[[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]])
            grid = nn.functional.affine_grid(theta, [1, 1, 8, 8], align_corners=False)
            return nn.functional.grid_sample(image, grid, align_corners=False)  # eight pixels

    return Example(Zoom(), (torch.randn(1, 1, 8, 8),))
