"""PA420 a TransformerEngine module with delayed scaling is called more than once in a forward pass

What it does: names every linear that the plan swaps for a TransformerEngine module under DelayedScaling and that the
model calls several times.
Why it is a hazard: delayed scaling keeps one history of maxima per module and moves it on when te.autocast is left. All
calls inside write to the same place, so that the scale of the next step fits one of them and saturates the others; with
reduce_amax TransformerEngine does not support it at all.
What to do: `recipe: Float8CurrentScaling`, whose scale is that of the present tensor, or give each call a module of its
own over the shared weight.
References: TransformerEngine pull request 93.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found

if TYPE_CHECKING:
    from torch import nn

_POLICY = """\
name: delayed
extends: bf16-training
device: h100
rules:
  - {name: linears, op: linear, class: fp8-eligible, backend: transformer_engine, recipe: RECIPE}
"""


def check(context: Context) -> Iterator[Finding]:
    ops = context.by_key()
    delayed = [swap for swap in context.swaps if swap.recipe == "DelayedScaling"]
    calls = Counter(swap.module for swap in delayed)
    for module in sorted(name for name, count in calls.items() if count > 1):
        first = next(swap for swap in delayed if swap.module == module)
        yield found(
            __name__,
            "warning",
            ops[first.op],
            f"{module} is called {calls[module]} times in one forward pass and has one history of maxima",
            Evidence("PROVED", f"{calls[module]} ops of the graph are this module, {first.kind} with DelayedScaling"),
            remedy="recipe: Float8CurrentScaling, or a module of its own for each call",
        )


def bad() -> Example:
    return _example("DelayedScaling")


def good() -> Example:
    return _example("Float8CurrentScaling")


def _example(recipe: str) -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.mix(x)  # PA420
            return torch.relu(self.mix(torch.relu(y)))

    model: nn.Module = Net()
    args: tuple[Any, ...] = (torch.randn(16, 32),)
    return Example(model, args, policy=_POLICY.replace("RECIPE", recipe))
