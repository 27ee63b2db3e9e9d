"""PA103 exp overflow

What it does: reports an exponential whose result leaves the low format's range.
Why it is a hazard: exp(11.1) is the end of fp16. Similarities divided by a small temperature, log-variances and
unshifted scores exceed that; the quotient of two infinities is NaN.
What to do: subtract the maximum first, use softmax, log_softmax or logsumexp, or keep exp to the division in fp32.
References: contrastive losses written with exp, sum and log; `torch.logsumexp`.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example
from precision_audit.rules.families import base
from precision_audit.rules.overflow import amax, overflowing
from precision_audit.rules.reach import Origin


def check(context: Context) -> Iterator[Finding]:
    remedy = (
        "subtract the maximum first, or use log_softmax or logsumexp; the exponential to the division in high precision"
    )
    return overflowing(__name__, "PA103", context, _says, remedy)


def _says(origin: Origin) -> str:
    return f"{base(origin.op)}: up to {amax(origin):.4g}"


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            e = torch.exp(x)  # PA103
            y: torch.Tensor = e / e.sum(-1, keepdim=True)
            return y

    return Example(Model(), (torch.tensor([[13.0, 12.0]]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            e = torch.exp(x - x.amax(-1, keepdim=True))
            y: torch.Tensor = e / e.sum(-1, keepdim=True)
            return y

    return Example(Model(), (torch.tensor([[13.0, 12.0]]),), policy="fp16-inference")
