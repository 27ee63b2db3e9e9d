"""PA505 nothing swapped though fp8 was asked

What it does: reports a policy with an fp8-eligible rule under which not one linear of the model was swapped.
Why it is a hazard: the model runs in bf16 or fp16 under a name that says fp8, and nothing else would show it. It is
not faster, and a measurement of it says nothing about fp8.
What to do: see why each linear was refused (PA401, PA306); pad the sizes, change the policy, or drop fp8 from its name.
References: silent fall-back has been reported of several fp8 libraries when a size or an import was wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found_in_policy
from precision_audit.rules.pa404_device_lacks import lacked

if TYPE_CHECKING:
    from torch import nn


def check(context: Context) -> Iterator[Finding]:
    asking = [rule for rule in context.policy.rules if rule.classification == "fp8-eligible"]
    if not asking or context.swaps:
        return
    linears = sum(1 for op in context.computed() if op.op == "linear")
    reasons = Counter(refusal.reason for refusal in context.refusals)
    commonest = min(reasons, key=lambda reason: (-reasons[reason], reason), default="no rule made a linear eligible")
    lacks = commonest in lacked(context).values()
    mend = "plan for a device that has it (PA404)" if lacks else "pad the sizes that are refused"
    told = f"{linears} linear{'' if linears == 1 else 's'}, {len(context.refusals)} refused ({commonest})"
    remedy = f"{mend}, or use a policy without fp8"
    if not linears and not context.refusals:
        told, remedy = "the model has no linear", "a policy without fp8, such as bf16-training or bf16-inference"
    elif context.refusals and all(refusal.not_worth for refusal in context.refusals):
        remedy = "a policy without fp8, a larger batch, or swap: eligible to have it all the same"
    elif commonest.startswith("rule "):
        remedy = "another recipe, as that rule says, or a policy without fp8"
    yield found_in_policy(
        __name__,
        "warning",
        asking[0],
        f"fp8 was asked for and nothing swapped: {told}",
        Evidence(
            "PROVED", f"{len(context.refusals)} refusals", (("linears", linears), ("refused", len(context.refusals)))
        ),
        remedy=remedy,
    )


def bad() -> Example:
    return _example(width=10)  # PA505


def good() -> Example:
    return _example(width=16)


def _example(width: int) -> Example:
    import torch
    from torch import nn

    model: nn.Module = nn.Sequential(nn.Linear(32, width), nn.ReLU())
    args: tuple[Any, ...] = (torch.randn(16, 32),)
    return Example(model, args, policy="fp8-training-hopper")
