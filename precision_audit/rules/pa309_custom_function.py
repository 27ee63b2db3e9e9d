"""PA309 hand-written gradient

What it does: in training, tells what becomes of every `torch.autograd.Function` of the user's, measured: whether the
gradients of the captured graph are the model's, and under an `amp-*` policy whether it runs under torch.autocast.
Why it is a hazard: a capture holds the forward alone, and its gradient is autograd's. A straight-through estimator then
has gradient zero, a reversed gradient its old sign, and nothing raises. Under torch.autocast the forward casts inside,
while the saved tensors keep their format: a backward written by hand then meets two formats.
What to do: write the gradient with ops: `x + (f(x) - x).detach()` for a straight-through estimator,
`(1 + s) * x.detach() - s * x` for a reversed one. Under autocast, decorate forward and backward with
`torch.amp.custom_fwd` and `custom_bwd`, or use a plain module.
References: PyTorch's AMP examples, "Functions that need a particular dtype"; PyTorch issue 38487.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from precision_audit.records import CustomFunction, Evidence, Finding
from precision_audit.rules import Context, Example, found

_BY_OPS = (
    "write the gradient with ops, such as x + (f(x) - x).detach() for a straight-through estimator, or convert the "
    "parts around it"
)


def check(context: Context) -> Iterator[Finding]:
    for each in context.facts.functions:
        if each.difference:
            yield _placed(context, each, _forgotten(context, each))
        if each.raised:
            # the conversion has autograd's backward, of its own casts; what raises is the user's under autocast
            yield replace(_placed(context, each, _raises(context, each)), resolved=not each.difference)


def _forgotten(context: Context, each: CustomFunction) -> Finding:
    high = context.policy.high
    return found(
        __name__,
        "error",
        None,
        f"{each.name}: its hand-written backward is not in the converted module → "
        f"the gradient of {each.parameter} is off by {each.difference:.2g} in {high} already",
        Evidence(
            "OBSERVED",
            f"gradients of the captured graph against the model's, both {high}, relative L2",
            (("error", each.difference),),
        ),
        remedy=_BY_OPS,
        of=f"{each.name} forgotten",
    )


def _raises(context: Context, each: CustomFunction) -> Finding:
    device, low = context.policy.autocast, context.policy.low
    wrapped = ", though custom_fwd wraps its forward" if each.custom_fwd else ""
    return found(
        __name__,
        "error",
        None,
        f"{each.name}: raises under torch.autocast({device}, {low}){wrapped}, {each.raised}",
        Evidence("OBSERVED", f"forward under torch.autocast on the CPU and backward, on the example: {each.raised}"),
        remedy=f'@torch.amp.custom_fwd(device_type="{device}", cast_inputs=torch.float32) on its forward and '
        f'@torch.amp.custom_bwd(device_type="{device}") on its backward, or a plain module',
        of=f"{each.name} raises",
    )


def _placed(context: Context, each: CustomFunction, made: Finding) -> Finding:
    """At the line that applies it."""
    last = next((op for op in reversed(context.graph.ops) if op.key in each.ops), None)
    return replace(made, source=each.call, op=last.key if last else "", module=last.module if last else "")


def bad() -> Example:
    import torch
    from torch import nn

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.round()

        @staticmethod
        def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = Rounded.apply(self.fc(x))  # type: ignore[no-untyped-call]  # PA309
            return y

    return Example(Model(), (torch.randn(4, 8) * 4,), policy="bf16-training")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.fc(x)
            y: torch.Tensor = h + (h.round() - h).detach()
            return y

    return Example(Model(), (torch.randn(4, 8) * 4,), policy="bf16-training")
