"""PA504 unknown op

What it does: reports an op that the op table does not know and that is therefore kept in the high format.
Why it is a hazard: it may be slow there, may sum in its own format, or may not accept the high format at all; whatever
it does to numbers, nobody has looked.
What to do: name it in a policy rule (`op: namespace::name`, with the class you know to be right), or leave it high.
References: the op table, `precision-audit list ops`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found

if TYPE_CHECKING:
    from torch import nn

_REASON = "rule PA504"  # how `decide` says that it kept an op for being unknown


def check(context: Context) -> Iterator[Finding]:
    for op in context.computed():
        decision = context.decisions[op.key]
        if op.kind == "unknown" and decision.reason.startswith(_REASON):
            yield found(
                __name__,
                "warning",
                op,
                f"{op.op} is not in the op table; kept in {decision.chosen}",
                Evidence("PROVED", f"no row for {op.op}"),
                remedy=f"a rule {{name: …, op: {op.op!r}, class: …}} decides it",
            )


def bad() -> Example:
    return Example(*_model())


def good() -> Example:
    return Example(*_model(), policy=_NAMED)


_NAMED = """
name: mine
extends: bf16-inference
rules:
  - {name: known-to-us, op: "precision_audit_example::halve", class: keep-fp32}
"""


def _model() -> tuple[nn.Module, tuple[Any, ...]]:
    import torch
    from torch import nn

    halve = _custom_op()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = halve(self.fc(x))  # PA504
            return made

    return Net(), (torch.randn(2, 8),)


def _custom_op() -> Any:
    """An op of our own, registered once per process."""
    import torch

    namespace = getattr(torch.ops, "precision_audit_example", None)
    if namespace is None or not hasattr(namespace, "halve"):

        @torch.library.custom_op("precision_audit_example::halve", mutates_args=(), schema="(Tensor x) -> Tensor")
        def halve(x: torch.Tensor) -> torch.Tensor:
            return x / 2

        halve.register_fake(torch.empty_like)
    return torch.ops.precision_audit_example.halve
