"""PA402 fp8 needs a size that the batch decides

What it does: states, for every swapped linear, what must hold of a symbolic dimension for its kernels to run.
Why it is a hazard: the gradient of a weight sums over the rows of the batch, and the fp8 kernel wants them in multiples
of 16. A training run dies in the backward pass of its last, shorter batch, hours in.
What to do: `DataLoader(drop_last=True)` with a fitting batch size, padding, or `recipe: rowwise_with_gw_hp`, which
computes that gradient in high precision.
References: the alignment checks of torch's `_scaled_mm`; pytorch/ao issue 571.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found

if TYPE_CHECKING:
    from torch import nn

_BACKWARD = " in backward, last batch included"
_FREE_RECIPE = "rowwise_with_gw_hp"  # torchao's recipe whose weight gradient is not fp8


def check(context: Context) -> Iterator[Finding]:
    ops = context.by_key()
    for swap in context.swaps:
        for constraint in swap.constraints:
            condition, backward, rest = constraint.partition(_BACKWARD)
            needs = f"backward needs {condition}, last batch included{rest}" if backward else f"needs {constraint}"
            yield found(
                __name__,
                "warning",
                ops[swap.op],
                f"{swap.module}: {needs}",
                Evidence("PROVED", f"K={swap.k} N={swap.n} M={swap.m}, recipe {swap.recipe} of {swap.backend}"),
                remedy="DataLoader(drop_last=True)"
                + (f", or recipe: {_FREE_RECIPE}" if swap.backend == "torchao" and swap.recipe != _FREE_RECIPE else ""),
                of=condition,
            )


def bad() -> Example:
    import torch

    return _example({"x": {0: torch.export.Dim("B")}})


def good() -> Example:
    import torch

    return _example({"x": {0: 16 * torch.export.Dim("B", min=1)}})


def _example(dynamic_shapes: Any) -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.fc(x)  # PA402
            return y

    model: nn.Module = Net()
    return Example(model, (torch.randn(64, 32),), policy="fp8-training-hopper", dynamic_shapes=dynamic_shapes)
