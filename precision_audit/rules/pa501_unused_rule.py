"""PA501 unused rule

What it does: reports a rule of your policy that fits no op of the model, whatever the other rules take.
Why it is a hazard: a typo in a module path looks like a protected layer and protects nothing; a rule left behind by a
renamed layer does the same. Rules of shipped policies are written for many models and are not reported.
What to do: mend the name; `module: encoder` is that one module, `module: encoder.*` everything below it.
References: the description of `module` in the policy schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit.policy.match import is_catch_all, is_glob
from precision_audit.policy.nodes import nearest
from precision_audit.records import Evidence, Finding, Rule
from precision_audit.rules import Context, Example, found_in_policy

if TYPE_CHECKING:
    from torch import nn

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a whole part of a path


def check(context: Context) -> Iterator[Finding]:
    for rule in idle(context):
        if context.matcher.fitting(rule):
            continue  # shadowed: PA502
        paths = sorted({op.module for op in context.computed()})
        yield found_in_policy(
            __name__,
            "warning" if rule.module or rule.module_type else "note",
            rule,
            f"rule {rule.name!r} matches no op of this model{_hint(rule, paths)}",
            Evidence("PROVED", f"compared with all {sum(1 for _ in context.computed())} ops"),
            remedy="mend or remove the rule",
        )


def idle(context: Context) -> Iterator[Rule]:
    """The user's own rules that decided nothing, the catch-all apart, nor would have but for a size."""
    used = {id(match.rule) for match in context.matches.values()}  # hashing a rule 20,000 times would take a while
    used |= {id(rule) for match in context.matches.values() for rule, _ in match.missed}
    for rule in context.policy.rules:
        if not rule.shipped and id(rule) not in used and not is_catch_all(rule):
            yield rule


def bad() -> Example:
    return Example(*_model(), policy=_POLICY.replace("WHERE", "encodr.*"))


def good() -> Example:
    return Example(*_model(), policy=_POLICY.replace("WHERE", "encoder.*"))


_POLICY = """
name: mine
extends: bf16-inference
rules:
  - {name: protect-encoder, module: "WHERE", class: keep-fp32}  # PA501
"""


def _model() -> tuple[nn.Module, tuple[Any, ...]]:
    import torch
    from torch import nn

    model = nn.Sequential()
    model.add_module("encoder", nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    model.add_module("head", nn.Linear(8, 4))
    return model, (torch.randn(2, 8),)


def _hint(rule: Rule, paths: list[str]) -> str:
    below = [
        pattern for pattern in rule.module if not is_glob(pattern) and any(p.startswith(f"{pattern}.") for p in paths)
    ]
    if below:
        return f" ({below[0]} computes nothing itself; {below[0]}.* is what lies below it)"
    shapes = {_NUMBER.sub("*", path) for path in paths}  # the layers of a stack are one name to compare with
    shapes |= {shape.rpartition(".")[0] for shape in shapes} | {shape.partition(".")[0] for shape in shapes}
    asked = (_NUMBER.sub("*", pattern.rstrip("*.") or pattern) for pattern in rule.module)
    return next((text for word in asked if (text := nearest(word, shapes - {""}))), "")
