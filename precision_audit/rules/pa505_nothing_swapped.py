"""PA505 nothing swapped though fp8 was asked

What it does: reports a policy with an fp8-eligible rule under which not one linear of the model was swapped. A
warning, and NOT ENOUGH EVIDENCE, where no linear may be; a note under `swap: worth-it` where linears may be and none is
predicted to gain: the plan is then what the policy asks for. The note has the best ratio, and rows at which it pays.
Why it is a hazard: the model runs in bf16 or fp16 under a name that says fp8, and nothing else would show it. It is
not faster, and a measurement of it says nothing about fp8.
What to do: see why each linear was refused (PA401, PA306); pad the sizes, change the policy, or drop fp8 from its name.
References: silent fall-back has been reported of several fp8 libraries when a size or an import was wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from precision_audit.cost.worth import pays_at, worth
from precision_audit.hardware.recipes import chosen
from precision_audit.records import Evidence, Finding, Refusal, Rule
from precision_audit.rules import Context, Example, found_in_policy
from precision_audit.rules.pa404_device_lacks import lacked

if TYPE_CHECKING:
    from torch import nn


def check(context: Context) -> Iterator[Finding]:
    asking = [rule for rule in context.policy.rules if rule.classification == "fp8-eligible"]
    if not asking or context.swaps:
        return
    worthless = [refusal for refusal in context.refusals if refusal.not_worth]
    if worthless:
        yield _judged(context, asking[0], worthless)
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


def _judged(context: Context, asking: Rule, worthless: Sequence[Refusal]) -> Finding:
    """The policy asked for a gain and there is none: the plan is what it should be. How far off the best one is."""
    layers = {_priced(context, refusal) for refusal in worthless}  # layers of one size once
    best = max(layers, key=lambda each: (each.speed_up, each.name))
    later = min((each for each in layers if each.rows), key=lambda each: (each.times, each.name), default=None)
    low, many = context.policy.low, len(worthless)
    linears = "the one linear that may be swapped is not" if many == 1 else f"none of {many} linears is"
    when = f"at M={later.rows} {later.name} would be {later.then:.2f}x as fast" if later else "no larger batch pays"
    numbers = (("speed_up", best.speed_up), ("rows", later.rows if later else 0))
    return found_in_policy(
        __name__,
        "note",
        asking,
        f"{linears} worth it on {context.hardware.name}: the plan is {low}; the best, {best.name}, predicted "
        f"{best.speed_up:.2f}x as fast with {best.recipe} as in {low} (M={best.m}); {when}",
        Evidence("ASSUMED", f"cost model of {context.hardware.name}", numbers),
        remedy="a larger batch, a policy without fp8, or swap: eligible to have it all the same",
    )


class _Priced(NamedTuple):
    """A layer at the example's rows, and at the first doubling of them at which it would pay (0: none)."""

    name: str
    recipe: str
    m: int
    speed_up: float
    rows: int
    then: float

    @property
    def times(self) -> float:
        return self.rows / self.m


def _priced(context: Context, refusal: Refusal) -> _Priced:
    op, policy, hardware = context.by_key()[refusal.op], context.policy, context.hardware
    recipe = chosen(refusal.backend, context.matches[op.key].rule.recipe, hardware).name
    inputs = context.matcher.inputs(op)
    asked = (refusal.backend, recipe, policy.low, hardware, policy.mode)
    now, later = worth(op, inputs, *asked), pays_at(op, inputs, *asked)
    rows, then = (later[0], later[1].speed_up) if later else (0, 0.0)
    name = f"linear {refusal.module}" if refusal.module.isdigit() else refusal.module or op.op
    return _Priced(name, recipe, prod(inputs[0].hint[:-1]), now.speed_up, rows, then)


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
