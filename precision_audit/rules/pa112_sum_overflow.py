"""PA112 sum overflow

What it does: reports a sum whose total leaves the low format's range while no summand does.
Why it is a hazard: the kernel may sum in fp32, but stores the total in the low format: 90000 pixels of one are infinite
in fp16, and a ratio of two such sums is NaN. A division that follows comes too late.
What to do: a mean instead of a sum, or keep the sum and the division in fp32.
References: soft dice and distance sums over images in half precision.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example
from precision_audit.rules.families import base
from precision_audit.rules.overflow import amax, overflowing
from precision_audit.rules.reach import Origin


def check(context: Context) -> Iterator[Finding]:
    remedy = "take the mean, or keep the sum and what divides it in high precision"
    return overflowing(__name__, "PA112", context, _says, remedy)


def _says(origin: Origin) -> str:
    return f"{base(origin.op)}: the total is up to {amax(origin):.4g}"


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x.sum() / x.numel()  # PA112
            return y

    return Example(Model(), (torch.ones(300, 300),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x.mean()
            return y

    return Example(Model(), (torch.ones(300, 300),), policy="fp16-inference")
