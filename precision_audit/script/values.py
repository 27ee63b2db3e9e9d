"""What a name of a script stands for, as far as its text tells: a scaler, an optimizer, a model, a tensor, …

Gives `Value`, one object for each thing the script makes; two names of one thing hold the same `Value`, so that
identity is what `is` says. Where the text does not tell (a parameter of a function that no line of the file calls)
`role` goes by the name, as a reader would. Never imports what it names.
"""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass, field
from typing import Any

from precision_audit.script.conditions import Formula, joined, negated

UNSET: Any = object()
_COUNT = itertools.count()

_BY_NAME = (
    ("scaler", re.compile(r"(?i)(^|_|grad|amp|loss)scaler(_?\w)?$")),
    ("scheduler", re.compile(r"(?i)sched")),
    ("optimizer", re.compile(r"(?i)(^|_)(optimi[sz]er|optim|opt)s?(_?[a-z0-9]{1,5})?$|^optimi[sz]er")),
    ("model", re.compile(r"(?i)^(model|net|network|generator|discriminator|encoder|decoder|unet|critic|actor|policy"
                         r"|teacher|student|backbone|classifier|autoencoder)(_?[a-z0-9]{1,3})?$|_(model|net)$")),
    ("loss", re.compile(r"(?i)^(criterion|loss_fn|loss_func|loss_function)$")),
)  # fmt: skip


@dataclass(eq=False)
class Value:
    """One thing. `kind`: scaler, optimizer, scheduler, model, loss (a criterion), tensor, parameter, parameters, grad,
    autocast, context (any other), function, bound, generator, class, instance, sequence, constant, dotted (a name of
    another package), unknown."""

    kind: str = "unknown"
    name: str = ""  # dotted where it comes from a package, else what the script calls it
    node: ast.AST | None = None  # where it was made
    attributes: dict[str, Value] = field(default_factory=dict)
    items: tuple[Value, ...] = ()  # of a sequence; the receiver of a bound method
    constant: Any = UNSET
    of: tuple[Value, ...] = ()  # the models of parameters, of an optimizer, of a tensor computed by them
    scaled: Value | None = None  # a tensor's scaler
    low: str = ""  # fp16 or bf16, where a tensor was surely cast to it
    format: str = ""  # an autocast's: fp16, bf16, "" where unknown
    device: str = ""  # an autocast's or a model's, "" where unknown
    enabled: Formula | None = True  # an autocast's or a scaler's; None where unknown
    there: Formula = True  # whether it is anything but None
    varies: bool = False  # differs from one batch to the next
    forwards: frozenset[int] = frozenset()  # indices of the forward events a tensor was computed from
    scope: Any = None  # where a function was defined
    factor: bool = False  # a tensor that was multiplied by something that may be a loss scale
    number: int = field(default_factory=lambda: next(_COUNT))

    @property
    def role(self) -> str:
        """`kind`, or what the name of an unknown suggests."""
        if self.kind not in ("unknown",):
            return self.kind
        return next((kind for kind, pattern in _BY_NAME if pattern.search(self.name)), "unknown")

    @property
    def is_none(self) -> bool:
        return self.kind == "constant" and self.constant is None


def none() -> Value:
    return Value("constant", constant=None)


def same(first: Value, second: Value, condition: Formula) -> Value:
    """What a name stands for after an `if`: `first` where `condition` held, else `second`."""
    if first is second:
        return first
    for one, other, when in ((first, second, condition), (second, first, negated(condition))):
        if other.is_none and one.kind not in ("constant", "unknown"):
            one.there = joined("and", (when, one.there))
            return one
    if first.kind == second.kind == "constant" and first.constant == second.constant:
        return first
    kind = first.kind if first.kind == second.kind else _preferred(first, second)
    same_format = first.format == second.format and first.kind == second.kind
    made = Value(
        kind if kind != "constant" else "unknown",
        first.name or second.name,
        first.node,
        of=tuple(dict.fromkeys((*first.of, *second.of))),
        scaled=first.scaled if first.scaled is second.scaled else None,
        low=first.low if first.low == second.low else "",
        format=first.format if same_format else "",
        device=first.device if first.device == second.device else "",
        enabled=first.enabled if first.enabled == second.enabled and first.kind == second.kind else None,
        varies=first.varies or second.varies,
        forwards=first.forwards | second.forwards,
        scope=first.scope,
        factor=first.factor or second.factor,
    )
    made.attributes.update(second.attributes | first.attributes)
    return made


def _preferred(first: Value, second: Value) -> str:
    kinds = {first.kind, second.kind}
    for kind in ("optimizer", "model", "tensor"):
        if kind in kinds and kinds <= {kind, "unknown"}:
            return kind
    return "autocast" if kinds == {"autocast", "context"} else "unknown"
