"""PA502 shadowed rule

What it does: reports a rule of your policy that fits ops of the model, all of which earlier rules already took.
Why it is a hazard: the first match wins, so the rule has no effect although it reads as if it had.
What to do: move the rule above the one named, or remove it. An exception stands before the rule it is an exception to.
References: the order of rules in a policy, first match wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found_in_policy
from precision_audit.rules.pa501_unused_rule import idle

if TYPE_CHECKING:
    from torch import nn


def check(context: Context) -> Iterator[Finding]:
    for rule in idle(context):
        fitting = context.matcher.fitting(rule)
        if not fitting:
            continue  # matches nothing at all: PA501
        takers = Counter(context.matches[op.key].rule for op in fitting)
        first, ops = min(takers.items(), key=lambda item: (-item[1], item[0].origin))
        yield found_in_policy(
            __name__,
            "warning",
            rule,
            f"rule {rule.name!r} never decides: {first.name!r} ({first.origin}) comes first",
            Evidence("PROVED", f"{len(fitting)} ops fit the rule, {ops} of them taken by {first.name!r}"),
            remedy=f"move it above {first.name!r}, or remove it",
        )


def bad() -> Example:
    return Example(*_model(), policy=_HEADER + _BROAD + _NARROW + _REST)


def good() -> Example:
    return Example(*_model(), policy=_HEADER + _NARROW + _BROAD + _REST)


_HEADER = """
name: mine
mode: inference
formats: {high: fp32, low: bf16}
rules:
"""
_BROAD = "  - {name: all-linears, op: linear, class: safe-in-bf16}\n"
_NARROW = "  - {name: head-high, module: head, op: linear, class: keep-fp32}  # PA502\n"
_REST = "  - {name: rest, class: follow}\n"


def _model() -> tuple[nn.Module, tuple[Any, ...]]:
    import torch
    from torch import nn

    model = nn.Sequential()
    model.add_module("body", nn.Linear(8, 8))
    model.add_module("head", nn.Linear(8, 4))
    return model, (torch.randn(2, 8),)
