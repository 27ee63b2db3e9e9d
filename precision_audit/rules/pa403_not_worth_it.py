"""PA403 fp8 gains nothing here

What it does: names every linear that may be swapped and for which fp8 is predicted to be no faster than the low format,
with both times; says so of the model where that holds of most of its swaps. A note: the result is right. Under
`swap: worth-it` such a linear is not swapped, and the finding says why.
Why it is a hazard: input and weight have to be read and scaled in every step before the product begins. With few rows,
or a small K or N, that costs more than the faster product saves, and the model pays with its accuracy for being slower.
Half of what is reported of fp8 libraries is "slower than bf16".
What to do: `swap: worth-it` (policy fp8-training-hopper-fast), a larger batch, or no fp8 for this model.
References: the automatic filter of torchao's `convert_to_float8_training`; pytorch/ao issues 2262, 1297 and 572.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from precision_audit.cost.worth import Worth, worth
from precision_audit.records import Evidence, Finding, Op, Swap
from precision_audit.rules import Context, Example, found, found_in_policy

if TYPE_CHECKING:
    from torch import nn


def check(context: Context) -> Iterator[Finding]:
    ops = context.by_key()
    for refusal in context.refusals:
        if refusal.not_worth:
            op = ops[refusal.op]
            message = f"{op.module}: stays {context.decisions[op.key].chosen or context.policy.low}: {refusal.reason}"
            yield found(__name__, "note", op, message, Evidence("ASSUMED", "cost model of the device"))
    judged = [(ops[key], _judged(context, ops[key], swap)) for swap in context.swaps for key in swap.linears]
    slower = [(op, verdict) for op, verdict in judged if verdict.reason]
    remedy = "swap: worth-it in the policy, or a larger batch"
    for op, verdict in slower:
        numbers = (("seconds", verdict.seconds), ("seconds_low", verdict.seconds_low))
        evidence = Evidence("ASSUMED", f"cost model of {context.hardware.name}", numbers)
        message = f"{op.module}: swapped, and {verdict.reason}"
        yield found(__name__, "note", op, message, evidence, remedy=remedy)
    if 2 * len(slower) > len(judged):
        yield _of_the_model(context, slower, len(judged))


def _judged(context: Context, op: Op, swap: Swap) -> Worth:
    tensors = {each.argument: context.tensors[each.value] for each in op.operands}
    inputs = [tensors[name] for name in ("input", "weight", "bias") if name in tensors]
    policy = context.policy
    return worth(op, inputs, swap.backend, swap.recipe, policy.low, context.hardware, policy.mode)


def _of_the_model(context: Context, slower: list[tuple[Op, Worth]], swaps: int) -> Finding:
    """Of the policy's first rule that swaps: the model as a whole has no line."""
    rule = next(each for each in context.policy.rules if each.classification == "fp8-eligible")
    lost = sum(verdict.seconds - verdict.seconds_low for _, verdict in slower)
    are, on = "swapped linears are" if swaps > 1 else "swapped linear is", context.hardware.name
    message = (
        f"{len(slower)} of {swaps} {are} predicted to gain nothing on {on} at the example's "
        f"sizes ({lost * 1e6:+.3g} µs together against {context.policy.low})"
    )
    made = found_in_policy(
        __name__,
        "note",
        rule,
        message,
        Evidence("ASSUMED", f"cost model of {context.hardware.name}", (("slower", len(slower)), ("swaps", swaps))),
        remedy="swap: worth-it in the policy, or one without swaps; audit with the batch you run",
    )
    return replace(made, op="", module="")


def bad() -> Example:
    return _example(rows=16)


def good() -> Example:
    return _example(rows=65536)


def _example(rows: int) -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4096, 8192, device="meta")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.fc(x)  # PA403
            return y

    model: nn.Module = Net()
    args: tuple[Any, ...] = (torch.randn(rows, 4096, device="meta"),)
    return Example(model, args, policy="fp8-training-hopper")
