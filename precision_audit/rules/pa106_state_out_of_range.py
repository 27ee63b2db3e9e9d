"""PA106 parameter, buffer or running statistic out of range

What it does: reports a parameter or buffer with elements beyond the low format's range, at the op that reads it first.
A note where all that reads it makes the same of the infinity: a bound, a threshold, a causal mask.
Why it is a hazard: casting the module makes them infinite, for good: a product with zero is NaN, a running variance of
infinity silences its channel, and the weights saved afterwards are destroyed.
What to do: keep the op that reads it, and with it the tensor, in fp32; or rescale the weights.
References: `torch.nn.Module.half` casts all floating-point parameters and buffers.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example
from precision_audit.rules.families import base
from precision_audit.rules.overflow import extreme, overflowing
from precision_audit.rules.reach import Origin


def check(context: Context) -> Iterator[Finding]:
    remedy = "keep the tensor and the ops that read it in high precision, or rescale it"
    return overflowing(__name__, "PA106", context, _says, remedy)


def _says(origin: Origin) -> str:
    return f"{base(origin.op)}: {origin.value} holds {extreme(origin):.4g}"


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.penalty: torch.Tensor
            self.register_buffer("penalty", torch.tensor([-1e9]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x + (x < 0) * self.penalty  # PA106
            return y

    return Example(Model(), (torch.tensor([1.0, -1.0]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.penalty: torch.Tensor
            self.register_buffer("penalty", torch.tensor([-1e4]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x + (x < 0) * self.penalty
            return y

    return Example(Model(), (torch.tensor([1.0, -1.0]),), policy="fp16-inference")
