"""PA205 sums kept in the low format

What it does: reports sums, running sums and scattered sums that are off by themselves since they are kept in the low
format while they grow; as a note where the device is known to do so, over many terms, and it has not shown here.
Why it is a hazard: a sum in bf16 stops growing once it is 256 times its terms, in fp16 2048 times. Most kernels sum in
fp32 and round once; running sums on a GPU and scattered sums do not.
What to do: sum in fp32 (`dtype=torch.float32`), or keep the op in fp32.
References: PyTorch numerical accuracy notes; the accumulators in this package's op table.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit import ops
from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.leaps import at_stake, base, evidence, leaps, severity, told
from precision_audit.rules.upstream import Upstream


def check(context: Context) -> Iterator[Finding]:
    known = set()
    for leap in leaps(context, "PA205"):
        known.add(leap.op.key)
        yield found(
            __name__,
            severity(leap),
            leap.op,
            f"{base(leap.op.key)} is summed in {context.low.name} → {told(leap, context)}",
            evidence(leap, context, "against the same sum in the captured format on the same rounded terms"),
            remedy="sum in fp32",
            pins=leap.pins,
        )
    if at_stake(context):
        yield from _deep(context, known)


def _deep(context: Context, known: set[str]) -> Iterator[Finding]:
    """Sums of so many terms that the last ones would not count, where the device keeps them low."""
    low, upstream = context.low, Upstream(context)
    for op in context.computed():
        if op.key in known or op.fixed or not op.operands or not upstream.is_float(op.values[0]):
            continue
        if ops.accumulates_in(op.op, low.name, context.hardware.kernels) != low.name:
            continue
        depth = ops.reduction_depth(op, [context.tensors[operand.value] for operand in op.operands])
        if depth is None or depth < (low.consecutive or 0):
            continue
        yield found(
            __name__,
            "note",
            op,
            f"{base(op.key)} over {depth} terms is summed in {low.name} → the last terms count for nothing if all have "
            "one sign",
            Evidence("ASSUMED", f"accumulator of {op.op} on {context.hardware.name}", (("terms", float(depth)),)),
            remedy="sum in fp32",
            pins=(op.key,),
        )


def bad() -> Example:
    import torch
    from torch import nn

    class Histogram(nn.Module):
        def forward(self, x: torch.Tensor, bins: torch.Tensor) -> torch.Tensor:
            return x.new_zeros(4).index_add(0, bins, x)  # PA205

    return Example(Histogram(), (0.5 + torch.rand(4000), torch.arange(4000) % 4))


def good() -> Example:
    import torch
    from torch import nn

    class Total(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((-1, -2))  # summed in fp32 by the kernel, rounded once

    return Example(Total(), (0.5 + torch.rand(4, 64, 64),))
