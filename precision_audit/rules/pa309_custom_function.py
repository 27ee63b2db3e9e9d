"""PA309 hand-written gradient

What it does: in training, tells what becomes of every `torch.autograd.Function` of the user's, measured: whether the
gradients of the captured graph are the model's, and whether its backward raises, or makes infinities or NaN of finite
gradients, in the eager model run low: under torch.autocast for an `amp-*` policy, cast as a whole for every other one.
Why it is a hazard: a capture holds the forward alone, and its gradient is autograd's; a function whose own gradient is
another (a straight-through estimator, a reversed gradient) is kept as one op that runs as it was written, but not where
it writes to its input, returns more than tensors or is given modules: then its gradient is zero or has its old sign,
and nothing raises. Run low, saved tensors keep their format and a tensor made in the backward has the default one: two
formats meet in code that nobody casts in. And what a forward spares, exp(2x) or a division by eps, leaves the range.
What to do: write the gradient with ops: `x + (f(x) - x).detach()` for a straight-through estimator,
`(1 + s) * x.detach() - s * x` for a reversed one. Run low, make tensors in the format of what is read and compute in
fp32 what leaves the range; under autocast decorate forward and backward with `torch.amp.custom_fwd` and `custom_bwd`.
References: PyTorch's AMP examples, "Functions that need a particular dtype"; PyTorch issue 38487.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from precision_audit.records import CustomFunction, Evidence, Finding, Source
from precision_audit.rules import Context, Example, found

_BY_OPS = (
    "write the gradient with ops, such as x + (f(x) - x).detach() for a straight-through estimator, or convert the "
    "parts around it"
)


def check(context: Context) -> Iterator[Finding]:
    calls: dict[tuple[str, Source | None], list[CustomFunction]] = {}
    for each in context.facts.functions:
        if each.difference:
            yield _placed(context, each, _forgotten(context, each), each.call)
        if each.raised or each.lost:
            calls.setdefault((each.name, each.defined), []).append(each)
    for each, *more in calls.values():
        # inlined, it has autograd's backward, of its own casts; kept, it is fed fp32: the eager model alone has it
        called = _called([each, *more])
        made = _raises(context, each, called) if each.raised else _loses(context, each, called)
        at = each.lines[0] if each.lines else each.call
        yield replace(_placed(context, each, made, at), resolved=not each.difference)


def _forgotten(context: Context, each: CustomFunction) -> Finding:
    high = context.policy.high
    why = f" (it cannot be kept: {each.why_not})" if each.why_not else ""
    return found(
        __name__,
        "error",
        None,
        f"{each.name}: its hand-written backward is not in the converted module{why} → "
        f"the gradient of {each.parameter} is off by {each.difference:.2g} in {high} already",
        Evidence(
            "OBSERVED",
            f"gradients of the captured graph against the model's, both {high}, relative L2",
            (("error", each.difference),),
        ),
        remedy=_BY_OPS,
        of=f"{each.name} forgotten",
    )


def _raises(context: Context, each: CustomFunction, called: str) -> Finding:
    device, low = context.policy.autocast, context.policy.low
    wrapped = ", though custom_fwd wraps its forward" if each.custom_fwd and device else ""
    return found(
        __name__,
        "error",
        None,
        f"{each.name}{called}: raises {_how(context)}{wrapped}, {each.raised}{_at(each)}",
        Evidence("OBSERVED", f"the eager model {_run(context)}, forward and backward, on the example: {each.raised}"),
        remedy=f'@torch.amp.custom_fwd(device_type="{device}", cast_inputs=torch.float32) on its forward and '
        f'@torch.amp.custom_bwd(device_type="{device}") on its backward, or a plain module'
        if device
        else f"make what it creates in the format of what it reads (dtype=x.dtype), or cast its inputs to fp32 and its "
        f"result back to {low}; the converted module does not raise",
        of=f"{each.name} raises",
    )


def _loses(context: Context, each: CustomFunction, called: str) -> Finding:
    scaled = f" without a loss scale (at {each.scaled:g} they are finite)" if each.scaled > 1 else ""
    return found(
        __name__,
        "warning" if scaled else "error",
        None,
        f"{each.name}{called}: its backward gets finite gradients and returns infinite ones or NaN "
        f"{_how(context)}{scaled}{_at(each)}",
        Evidence("OBSERVED", f"the eager model {_run(context)}, on the example: {each.lost}; in fp32 all are finite"),
        remedy="compute its backward in fp32 (gradient.float(), and of the saved tensors, then back), or write it in a "
        "form that stays in range",
        of=f"{each.name} loses",
    )


def _called(calls: Iterable[CustomFunction]) -> str:
    lines = [str(each.call.line) for each in calls if each.call]
    return f", applied at line{'s' * (len(lines) > 1)} {', '.join(lines)}" if lines else ""


def _at(each: CustomFunction) -> str:
    said = "; ".join(f"line {line.line}: {line.text}" for line in each.lines)
    return f" ({said})" if said else ""


def _how(context: Context) -> str:
    device, low = context.policy.autocast, context.policy.low
    return f"under torch.autocast({device}, {low})" if device else f"in the model cast to {low}"


def _run(context: Context) -> str:
    low = context.policy.low
    return "with its forward under torch.autocast on the CPU" if context.policy.autocast else f"cast whole to {low}"


def _placed(context: Context, each: CustomFunction, made: Finding, at: Source | None) -> Finding:
    """At the line to be changed, and at the op that the call became."""
    last = next((op for op in reversed(context.graph.ops) if op.key in each.ops), None)
    return replace(made, source=at, op=last.key if last else "", module=last.module if last else "")


def bad() -> Example:
    import torch
    from torch import nn

    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(index)
            ctx.size = table.shape
            return table[index]

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            total = torch.zeros(ctx.size)
            total.index_add_(0, ctx.saved_tensors[0], gradients[0])  # PA309
            return total, None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.Parameter(torch.randn(16, 8)), nn.Linear(8, 8)

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.fc(Rows.apply(self.table, index))  # type: ignore[no-untyped-call]
            return y

    return Example(Model(), (torch.arange(4),), policy="bf16-training")


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
