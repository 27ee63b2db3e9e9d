"""PA113 NaN in the high format already

What it does: reports the first op, or the input, whose values hold NaN in the captured format, before anything is
lowered. What merely inherits it is not named.
Why it is a hazard: ranges count finite numbers only, so what is NaN can be judged in no format, and a comparison with
such a reference says nothing.
What to do: mend the data or the op: a row masked as a whole, the logarithm of a negative number, zero over zero.
References: IEEE 754, invalid operations.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding, Op, Range
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import base
from precision_audit.rules.reach import STATE, Reach

_OVERWRITE = frozenset({"copy", "copy_", "fill", "fill_", "zero", "zero_", "normal", "uniform", "bernoulli"})


def check(context: Context) -> Iterator[Finding]:
    reach = Reach(context)
    for op in context.graph.ops:
        spoiled = [value for value in op.values if _nans(context, value)]
        if not spoiled or any(_nans(context, operand.value) for operand in op.operands):
            continue
        seen = context.ranges[spoiled[0]]
        uses = [use for use in reach.first_uses(spoiled[0]) if not _overwrites(use, spoiled[0])]
        if op.kind in STATE and uses:
            yield _finding(context, uses[0], spoiled[0], seen)
        elif op.kind not in STATE:
            yield _finding(context, op, spoiled[0], seen)


def _overwrites(op: Op, value: str) -> bool:
    """Whether the op writes over the whole value without reading it."""
    reads = [operand.argument for operand in op.operands if operand.value == value]
    return op.op in _OVERWRITE and reads == [op.mutates]


def _nans(context: Context, value: str) -> int:
    seen = context.ranges.get(value)
    return seen.nan if seen is not None else 0


def _finding(context: Context, op: Op, value: str, seen: Range) -> Finding:
    what = "makes" if value in op.values else f"reads {value}, which holds"
    return found(
        __name__,
        "note" if value in op.values else "warning",  # an op may be meant to; data or weights never are
        op,
        f"{base(op)}: {what} NaN in {context.policy.high} already → nothing can be said of what follows from it",
        Evidence(
            seen.basis,
            f"{seen.nan} of {seen.count} elements are NaN, first in batch {max(seen.lost_in, 0)}",
            (("nan", float(seen.nan)), ("count", float(seen.count)), ("batch", float(max(seen.lost_in, 0)))),
        ),
        remedy="mend the data or the op before its precision is judged",
        of=value if value not in op.values else "",
    )


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.sqrt(x)  # PA113
            return y * 2

    return Example(Model(), (torch.tensor([4.0, -1.0]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.sqrt(torch.relu(x))
            return y * 2

    return Example(Model(), (torch.tensor([4.0, -1.0]),), policy="fp16-inference")
