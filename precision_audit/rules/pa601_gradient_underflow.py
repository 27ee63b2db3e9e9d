"""PA601 gradients vanish without a loss scale

What it does: takes real training steps and looks which gradients the low format rounds to zero: those of weights, and
those of activations on their way back. From 2**-27 to 2**-24 they are lost in fp16 and matter; below 2**-27 only where
a tensor has hardly any others.
Why it is a hazard: a weight whose gradient is zero is not trained, and neither is anything in front of an activation
whose gradient is zero. Nothing is infinite, nothing raises: the loss goes down more slowly, or not at all.
What to do: multiply the loss by a power of two and divide the gradients by it before they are clipped or applied:
torch.amp.GradScaler, with the initial scale that the finding gives. bf16 has the range of fp32 and needs none.
References: Micikevicius et al., Mixed Precision Training (2018), section 3.2; torch.amp.GradScaler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from precision_audit.analyse.training.loss_scale import Bands, bands, noise, vanishing
from precision_audit.formats import FORMATS
from precision_audit.records import Evidence, Finding, LossScale, Range, Severity, Training
from precision_audit.rules import Context, Example, found
from precision_audit.rules.stored import operation

_ENOUGH = 0.01  # of the gradients that matter: less is lost to any rounding


def check(context: Context) -> Iterator[Finding]:
    training = context.facts.training
    scale = training.scale if training else None
    if training is None or scale is None or (scale.sufficient <= 1 and not scale.vanish):
        return
    if (
        FORMATS[scale.format].exponent_bits == FORMATS["fp32"].exponent_bits
    ):  # what vanishes there vanishes in fp32, too
        return
    gradients = (*training.weight_gradients, *training.activation_gradients)
    seen = bands(gradients, FORMATS[scale.format])
    worst = _worst(training.weight_gradients, scale)
    matters = seen.lost / (seen.lost + seen.held) if seen.lost + seen.held else 1.0
    stalled = worst is not None and worst[1] > 0.5
    severity: Severity = "warning" if scale.sufficient > 1 and (matters > _ENOUGH or stalled) else "note"
    place = worst[0] if worst is not None and stalled else scale.sufficient_for
    yield found(
        __name__,
        severity,
        operation(place, context),
        _message(scale, worst),
        _evidence(training, scale, seen),
        remedy=_remedy(scale),
        of="loss scale",
    )


def _worst(gradients: tuple[Range, ...], scale: LossScale) -> tuple[str, float] | None:
    """The weight that loses the largest share of its gradient."""
    still, format = noise(gradients), FORMATS[scale.format]
    lost = [(each.value, vanishing([each], format)) for each in gradients if each.amax and each.value not in still]
    return max(lost, key=lambda each: each[1], default=None)


def _message(scale: LossScale, worst: tuple[str, float] | None) -> str:
    of = f", {worst[1]:.0%} of those of {worst[0]}" if worst and worst[1] >= _ENOUGH else ""
    few = "a few" if scale.vanish < 5e-4 else f"{scale.vanish:.1%} of all"
    return f"{few} gradients{of} → zero in {scale.format} without a loss scale"


def _evidence(training: Training, scale: LossScale, seen: Bands) -> Evidence:
    smallest = FORMATS[scale.format].min_subnormal or 0.0
    top = int(math.log2(smallest))
    text = (
        f"{training.steps} steps: {seen.dropped:.1%} below 2^{top - 3}, {seen.lost:.1%} from there to 2^{top}, "
        f"{seen.held:.1%} above; a scale of {_power(scale.recommended)} leaves {scale.vanish_scaled:.1%} at zero"
    )
    numbers = (
        ("below", seen.dropped),
        ("lost", seen.lost),
        ("vanish", scale.vanish),
        ("vanish_scaled", scale.vanish_scaled),
        ("sufficient", scale.sufficient),
        ("recommended", scale.recommended),
        ("safe", scale.safe),
    )
    return Evidence("OBSERVED", text, numbers)


def _remedy(scale: LossScale) -> str:
    if scale.sufficient <= 1:
        return (
            "none is needed for these, which are too small to matter; a torch.amp.GradScaler still guards against "
            f"smaller ones ({_power(scale.safe)} is the largest safe scale)"
        )
    return (
        f"torch.amp.GradScaler(device, init_scale={_power(scale.recommended, '2.0**')}): {_power(scale.sufficient)} "
        f"suffices, {_power(scale.safe)} is the largest safe one (margin {scale.margin:g}); or bf16, which needs none"
    )


def _power(scale: float, base: str = "2^") -> str:
    return f"{base}{math.frexp(scale)[1] - 1}"


def bad() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.out = nn.Linear(16, 32), nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(torch.tanh(self.inside(x)))  # PA601

    return Example(
        Net(), (torch.randn(64, 16),), policy="fp16-training", loss=lambda output: 1e-5 * output.pow(2).mean()
    )


def good() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.out = nn.Linear(16, 32), nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(torch.tanh(self.inside(x)))

    return Example(Net(), (torch.randn(64, 16),), policy="fp16-training", loss=lambda output: output.pow(2).sum())
