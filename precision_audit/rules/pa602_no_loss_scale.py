"""PA602 gradients overflow, or no loss scale fits

What it does: takes real training steps and compares the largest gradient with the low format's range, and with the
scale that the smallest gradients need.
Why it is a hazard: a gradient beyond the range is infinite and the step is skipped; a scaler then halves its scale
until the largest gradients fit, below what the smallest ones need, which vanish. With torch.amp.GradScaler's default of
2**16 a model with large gradients skips its first steps.
What to do: the initial scale that the finding gives; where none fits, bf16, or keep the ops with the largest gradients
in fp32, or clip what makes them large.
References: Micikevicius et al., Mixed Precision Training (2018), section 3.2; torch.amp.GradScaler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from precision_audit.records import Evidence, Finding, LossScale, Severity
from precision_audit.rules import Context, Example, found
from precision_audit.rules.stored import operation

_ENOUGH = 0.01  # of the gradients: less is lost to any rounding
_DEFAULT = 2.0**16  # init_scale of torch.amp.GradScaler


def check(context: Context) -> Iterator[Finding]:
    training = context.facts.training
    scale = training.scale if training else None
    if training is None or scale is None or scale.format != "fp16":  # bf16 overflows where fp32 does
        return
    op = operation(scale.safe_for, context)
    if not scale.fits:
        message = (
            f"the smallest gradients need a scale of {_power(scale.needed)} ({scale.sufficient_for}), the largest "
            f"allow {_power(scale.safe)} → no loss scale keeps both in {scale.format}"
        )
        remedy = "bf16, which needs no scale; or keep the ops with the largest gradients in fp32"
        severity: Severity = "warning" if scale.safe < 1 or scale.vanish_scaled > _ENOUGH else "note"
        yield found(__name__, severity, op, message, _evidence(scale), remedy=remedy, of="none fits")
    elif scale.safe < 1:
        message = f"the largest gradient → infinite in {scale.format} unless the loss is scaled down"
        remedy = f"torch.amp.GradScaler(device, init_scale={scale.safe:g}), or bf16"
        yield found(__name__, "warning", op, message, _evidence(scale), remedy=remedy, of="below one")
    elif scale.safe * scale.margin < _DEFAULT:  # infinite for certain, without any margin
        message = f"the largest gradient times GradScaler's default of 2^16 → infinite in {scale.format}: steps skipped"
        remedy = f"torch.amp.GradScaler(device, init_scale={scale.recommended:g})"
        yield found(__name__, "note", op, message, _evidence(scale), remedy=remedy, of="default")


def _evidence(scale: LossScale) -> Evidence:
    numbers = (("sufficient", scale.sufficient), ("safe", scale.safe), ("recommended", scale.recommended))
    largest = f"the largest scale with a margin of {scale.margin:g} is {_power(scale.safe)}, for {scale.safe_for}"
    return Evidence("OBSERVED", largest, numbers)


def _power(scale: float) -> str:
    return f"2^{math.frexp(scale)[1] - 1}"


def bad() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.fc(x)  # PA602

    return Example(Net(), (torch.randn(8, 16),), policy="fp16-training", loss=lambda output: 1e5 * output.sum())


def good() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.fc(x)

    return Example(Net(), (torch.randn(8, 16),), policy="fp16-training", loss=lambda output: output.mean())
