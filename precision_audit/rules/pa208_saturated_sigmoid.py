"""PA208 logarithm of a saturated sigmoid

What it does: reports binary cross entropy, and any logarithm, of a sigmoid, tanh or softmax that has reached one.
Why it is a hazard: in bf16 a sigmoid is exactly one from 6.2 on, in fp16 from 8.3. The logarithm of what is left is
that of zero: the loss of a confident mistake jumps to the clamp of 100 or to infinity, its gradient to zero.
What to do: `binary_cross_entropy_with_logits`, `logsigmoid`, `log_softmax`; or squash and take the logarithm in fp32.
References: `torch.nn.BCEWithLogitsLoss`; torch.autocast refuses `binary_cross_entropy` on CUDA for this reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.leaps import base, evidence, leaps, severity, told


def check(context: Context) -> Iterator[Finding]:
    for leap in leaps(context, "PA208"):
        held = context.ranges.get(leap.notes["squasher"])
        reached = f"up to {held.highest:.6g}" if held else "near one"
        yield found(
            __name__,
            severity(leap),
            leap.op,
            f"{base(leap.op.key)} of a {leap.notes['function']} {reached} → one in {context.low.name}; "
            f"{told(leap, context)}",
            evidence(leap, context),
            remedy="take the loss of the logits: binary_cross_entropy_with_logits, logsigmoid or log_softmax",
            pins=leap.pins,
        )


def bad() -> Example:
    import torch
    from torch import nn

    class Loss(nn.Module):
        def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            probability = torch.sigmoid(logits)
            return nn.functional.binary_cross_entropy(probability, target, reduction="none")  # PA208

    return Example(Loss(), (torch.linspace(5.0, 9.0, 32), (torch.arange(32) % 2).float()))


def good() -> Example:
    import torch
    from torch import nn

    class Loss(nn.Module):
        def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")

    return Example(Loss(), (torch.linspace(5.0, 9.0, 32), (torch.arange(32) % 2).float()))
