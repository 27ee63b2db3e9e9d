"""PA608 gradients accumulate in a low format

What it does: says of a model whose parameters are in a low format what becomes of gradients that are summed over
micro-batches: `.grad` has the format of its parameter.
Why it is a hazard: every sum rounds. n micro-batches are off by up to n times half the spacing, 3 % for 16 of them in
bf16, and after 256 equal gradients another one changes nothing.
What to do: fp32 parameters (gradients are then summed in fp32), or sum into fp32 buffers of your own; one backward pass
over the whole batch where it fits.
References: Micikevicius et al., Mixed Precision Training (2018), section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.stored import least_half_step, operation, stored

_MICRO_BATCHES = 16  # as common as any number


def check(context: Context) -> Iterator[Finding]:
    where, training = stored(context), context.facts.training
    if where is None or not where.own or training is None or not training.weight_gradients:
        return
    format = where.format
    off = _MICRO_BATCHES * least_half_step(format)
    yield found(
        __name__,
        "note",
        operation(training.weight_gradients[0].value, context),
        f"gradients are {format.name} as their parameters → {_MICRO_BATCHES} micro-batches summed are off by up to "
        f"{off:.1%}, {format.consecutive} equal ones stop growing",
        Evidence("PROVED", f".grad has the format of its parameter, {format.name}", (("error", off),)),
        remedy="fp32 parameters, whose gradients are summed in fp32; or one backward pass for the whole batch",
        of="accumulation",
    )


def bad() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return self.fc(x)  # PA608

    x = torch.randn(2, 8, dtype=torch.bfloat16)
    return Example(Net().bfloat16(), (x,), policy="bf16-training", loss=lambda output: output.float().pow(2).mean())


def good() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return self.fc(x)

    return Example(Net(), (torch.randn(2, 8),), policy="bf16-training", loss=lambda output: output.pow(2).mean())
