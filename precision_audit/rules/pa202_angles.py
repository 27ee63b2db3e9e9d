"""PA202 large angles

What it does: reports sines and cosines of numbers so large that the low format's step between them is a part of a turn:
timesteps, phases, coordinates times 2^k. A table of positions that so far comes out right is a note.
Why it is a hazard: a format keeps relative precision, and an angle needs absolute precision. Near 1000 neighbours in
bf16 lie 4 radians apart, in fp16 half a radian, and the sine is that of another angle.
What to do: compute angle, sine and cosine in fp32 (the result may be low), or reduce the angle before it is rounded.
References: NeRF (arXiv 2003.08934); Denoising Diffusion Probabilistic Models (arXiv 2006.11239).
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import ANGLES
from precision_audit.rules.leaps import at_stake, evidence, half_step, leaps, severity, told, tolerance
from precision_audit.rules.upstream import STATE, Upstream


def check(context: Context) -> Iterator[Finding]:
    known = {key for code in ("PA201", "PA202") for leap in leaps(context, code) for key in leap.pins}
    for leap in leaps(context, "PA202"):
        held = context.ranges.get(leap.notes["angle"])
        size = f"angles up to {held.amax:.4g}" if held else "large angles"
        yield found(
            __name__,
            severity(leap),
            leap.op,
            f"{size} → a step of {context.low.name} is a part of a turn; {told(leap, context)}",
            evidence(leap, context),
            remedy="compute the angle, its sine and its cosine in fp32",
            pins=leap.pins,
        )
    if at_stake(context):
        yield from _tables(context, known)


def _tables(context: Context, known: set[str]) -> Iterator[Finding]:
    """Angles made of positions or constants, without a product: they stay high although nothing is wrong yet."""
    upstream = Upstream(context)
    angles: dict[str, list[Op]] = {}
    for op in context.computed():
        if op.op in ANGLES and op.key not in known and not op.fixed and upstream.floats(op):
            angles.setdefault(upstream.origin(upstream.floats(op)[0]), []).append(op)
    for value, ops in angles.items():
        held = context.ranges.get(value)
        error = half_step(context, held.amax) if held else 0.0
        region = upstream.region([value])
        seen = context.beside.get(value)
        fixed = context.maker[value].fixed or (seen is not None and seen.format != context.policy.low)
        exact = held is not None and context.policy.low in held.held and seen is not None and not seen.drift
        if held is None or error < tolerance(context) or region.products or fixed or exact:
            continue
        unseen = not context.facts.beside and error >= 0.25
        maker = context.maker[value]
        yield found(
            __name__,
            "warning" if unseen else "note",
            ops[0] if maker.kind in STATE else maker,
            f"angles up to {held.amax:.4g} → off by up to {error:.2g} radians in {context.low.name}",
            Evidence(held.basis, f"half a step of {context.low.name} at that size", (("amax", held.amax),)),
            remedy="compute the angle, its sine and its cosine in fp32",
            pins=(*region.nearest(), *(op.key for op in ops)),
        )


def bad() -> Example:
    import torch
    from torch import nn

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frequencies = nn.Buffer(torch.exp(-0.6 * torch.arange(16)))

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            angles = t[:, None] * self.frequencies  # PA202
            return torch.cat([torch.sin(angles), torch.cos(angles)], -1)

    return Example(Embedding(), (torch.tensor([998.39, 741.6, 333.3]),))


def good() -> Example:
    import torch
    from torch import nn

    class Sine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(self.layer(x))

    return Example(Sine(), (torch.randn(8, 32),))
