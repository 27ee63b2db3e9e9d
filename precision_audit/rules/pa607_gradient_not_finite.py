"""PA607 gradient lost by a derivative

What it does: reports an op whose own derivative makes gradients infinite or NaN, or loses more than half of them,
when the model runs wholly in the low format, forward and backward, although what the op received is right. What
inherits the loss is not named. Runs after all other rules, silent where one of them names the op and keeps the same.
Why it is a hazard: the forward is right, so no test of outputs notices. A 3-norm of small numbers divides by its
square, which is zero; log1p next to -1 has slope infinity, and what comes back is zero: infinity times zero is NaN, and
one NaN spoils every weight in front of it.
What to do: `convert` keeps the op and what is needed with it in fp32. By hand: a fused form (logsigmoid, softplus,
F.gelu), an eps under the root, or a `where` on both sides of the singular op, so that it never sees the bad value.
References: PyTorch's notes on gradients of non-differentiable functions; the double-where of JAX's FAQ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from precision_audit.records import Backward, Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.derivatives import says
from precision_audit.rules.families import base

LAST = True


def check(context: Context) -> Iterator[Finding]:
    ops = context.by_key()
    for lost in context.facts.backward:
        if lost.op in ops and not _told(context, lost):
            yield _finding(context, lost)


def _told(context: Context, lost: Backward) -> bool:
    """Whether a rule about the forward already names this op and keeps high what its derivative needs."""
    same = (one for one in context.told if one.op == lost.op and (one.severity != "note" or one.overridden))
    return any(set(lost.pins) <= set(one.pins) for one in same)


def _finding(context: Context, lost: Backward) -> Finding:
    op, low = context.by_key()[lost.op], context.policy.low
    phrase = says(context, op)
    more = f" and {len(lost.reaches) - 1} more" if len(lost.reaches) > 1 else ""
    what = f"{phrase} → " if phrase else ""
    scaled = f" at loss scale {lost.scale:g}" if low == "fp16" else ""
    spared = "; your own cast prevents that" if _high_when_cast(op, context) else ""
    return found(
        __name__,
        "note" if spared else "warning" if lost.vanishes else "error",
        op,
        f"{base(op)}: {what}a gradient that {_fate(lost, low)} {lost.reaches[0]}{more}{spared}",
        Evidence(
            "OBSERVED",
            f"{_seen(lost)}{scaled}",
            (("lost", float(lost.lost)), ("count", float(lost.count)), ("scale", lost.scale)),
        ),
        remedy=_remedy(context, lost),
        pins=lost.pins,
    )


def _high_when_cast(op: Op, context: Context) -> bool:
    """Whether the user's own casts keep the op high in a model that is cast as a whole; a plan might not."""
    seen = [context.as_cast[value].format for value in op.values if value in context.as_cast]
    known = bool(context.facts.cast) and not context.policy.autocast
    return known and bool(seen) and all(format == context.policy.high for format in seen)


def _fate(lost: Backward, low: str) -> str:
    return f"is mostly lost in {low}, and with it that of" if lost.vanishes else f"is not finite in {low}, nor that of"


def _seen(lost: Backward) -> str:
    if lost.vanishes:
        return f"less than half is left of the gradient of {lost.value}, all that it received is there"
    return f"{lost.lost} of {lost.count} elements of the gradient of {lost.value}, all it received is finite"


def _remedy(context: Context, lost: Backward) -> str:
    ops, high = context.by_key(), context.policy.high
    if not math.isfinite(lost.error):
        return "write it in a form whose derivative is finite there"
    kept = ", ".join(dict.fromkeys(base(ops[key]) for key in lost.pins))
    return f"keep {kept} in {high}, which was tried and gives the gradients back, or use a form stable backwards"


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1.0, 1.5]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.linalg.vector_norm(x * self.scale, ord=3, dim=-1)  # PA607
            return y

    return Example(Model(), (torch.tensor([[1e-4, 2e-4], [2e-4, 1e-4]]),), policy="fp16-training")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1.0, 1.5]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.linalg.vector_norm(x * self.scale, ord=3, dim=-1)
            return y

    return Example(Model(), (torch.tensor([[1.0, 2.0], [2.0, 1.0]]),), policy="fp16-training")
