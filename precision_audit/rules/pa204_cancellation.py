"""PA204 cancellation

What it does: reports differences of nearly equal numbers whose digits the low format has already lost: variances as
E[x²] - E[x]², distances as |x|² + |y|² - 2x·y, a mean taken off, differences of running sums, finite differences. Only
where an output is off by more than the policy allows.
Why it is a hazard: the subtraction itself is exact; it leaves the operands' rounding errors and removes the numbers.
What is left has a wrong size and often a wrong sign, and a root or a logarithm of it is NaN.
What to do: subtract first and square afterwards (the centred variance, the distance of differences), or keep the
operands in fp32 from where they are made.
References: Higham, Accuracy and Stability of Numerical Algorithms, 1.7 and 1.9.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.leaps import base, evidence, leaps, severity, told
from precision_audit.rules.upstream import Upstream


def check(context: Context) -> Iterator[Finding]:
    upstream = Upstream(context)
    for leap in leaps(context, "PA204"):
        where = leap.notes.get("difference")
        what = f"{base(leap.op.key)} of a difference" if where else base(leap.op.key)
        of_one = leap.op.op == "rsub" and dict(leap.op.attributes).get("other") in (1, 1.0)
        of_one = of_one and leap.error < 1 and upstream.ends(leap.op)
        yield found(
            __name__,
            "note" if of_one else severity(leap),  # a loss 1 - x: what is small is small beside one
            leap.op,
            f"{what}: nearly equal numbers are subtracted → {told(leap, context)}",
            evidence(leap, context, f"the difference is made at `{where}`" if where else ""),
            remedy="subtract before squaring or summing, or keep the operands in fp32 from where they are made",
            pins=leap.pins,
        )


def bad() -> Example:
    import torch
    from torch import nn

    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            variance = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2  # PA204
            return x / torch.sqrt(variance.clamp(min=0) + 1e-3)

    return Example(Norm(), (8 + 0.2 * torch.randn(16, 64),))


def good() -> Example:
    import torch
    from torch import nn

    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            centred = x - x.mean(-1, keepdim=True)
            return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-3)

    return Example(Norm(), (0.5 + torch.randn(16, 64),))
