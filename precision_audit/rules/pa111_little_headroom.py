"""PA111 little headroom

What it does: notes values within a factor of two of the low format's largest number on the data that was given.
Why it is a hazard: more data, or the next checkpoint, reaches further. What has a factor of two left today overflows on
the first input that is twice as large.
What to do: more calibration data; keep the op in fp32 with a rule of the policy, or scale before.
References: IEEE 754 binary16, largest number 65504.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import base
from precision_audit.rules.reach import STATE, Reach

_HEADROOM = 2.0


def check(context: Context) -> Iterator[Finding]:
    reach = Reach(context)
    for op in context.graph.ops:
        if op.kind in STATE or not reach.free(op) or any(_near(context, reach, value) for value in reach.inputs(op)):
            continue
        for value in op.values:
            if _near(context, reach, value) and not reach.far(value) and not reach.masklike(value):
                yield _finding(context, op, value)
                break


def _near(context: Context, reach: Reach, value: str) -> bool:
    """Within the factor of the limit, or beyond it, so that what comes after has inherited it."""
    seen = context.ranges.get(value)
    return seen is not None and seen.amax * _HEADROOM >= context.low.max_finite and value not in reach.shielded


def _finding(context: Context, op: Op, value: str) -> Finding:
    seen, limit = context.ranges[value], context.low.max_finite
    return found(
        __name__,
        "note",
        op,
        f"{base(op)}: up to {seen.amax:.4g} → a factor of {limit / seen.amax:.2f} below the largest {context.low.name}",
        Evidence(
            seen.basis,
            f"magnitude {seen.amax:.6g} at {value}, limit {limit:.6g}; batch {seen.batch}",
            (("amax", seen.amax), ("limit", limit), ("batch", float(seen.batch)), ("headroom", limit / seen.amax)),
        ),
        remedy="more calibration data, or a rule that keeps the op in high precision",
    )


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x * 200.0  # PA111
            return y

    return Example(Model(), (torch.tensor([200.0, 1.0]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x * 100.0
            return y

    return Example(Model(), (torch.tensor([200.0, 1.0]),), policy="fp16-inference")
