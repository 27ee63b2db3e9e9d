"""PA308 integers promoted to the low format

What it does: reports an op in which whole numbers of an integer tensor, known to lie beyond what the low format counts,
meet floats: PyTorch makes the result in the float's format and rounds the integers to it first.
Why it is a hazard: int64 times bf16 is bf16. Beyond 256 (fp16: 2048) neighbouring integers become one number before
anything is computed of them. Where an angle or an index comes of it, PA201 and PA202 tell what it does.
What to do: compute in fp32 (`index.float()`), or keep the arithmetic on the integers.
References: PyTorch's type promotion, categories before widths.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.formats import is_float
from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found

LAST = 1  # what another rule tells of the same op is not told again

_PROMOTING = ("pointwise_arith", "concat")
_HANDING_ON = ("view_layout", "cast", "gather_index")


def check(context: Context) -> Iterator[Finding]:
    told = {key for finding in context.told if finding.rule.startswith("PA2") for key in (finding.op, *finding.pins)}
    highest = context.low.consecutive
    for op in context.computed():
        if op.key in told or highest is None or not _promotes(op, context):
            continue
        largest = max((_largest(operand.value, context) for operand in op.operands), default=0)
        if largest > highest:
            numbers = (("amax", float(largest)), ("limit", float(highest)))
            yield found(
                __name__,
                "note",
                op,
                f"{op.op} of integers up to {largest} and floats → {context.low.name} rounds the integers first, "
                f"it counts to {highest}",
                Evidence("PROVED", "an integer tensor takes the format of the floats it meets", numbers),
                remedy="make the integers fp32 before: index.float()",
                pins=(op.key,),
            )


def _promotes(op: Op, context: Context) -> bool:
    """Whether integers and floats, both with dimensions, make a float."""
    if op.kind not in _PROMOTING or not op.outputs or op.outputs[0].format != context.policy.high:
        return False
    read = [context.tensors[operand.value] for operand in op.operands]
    floats = any(is_float(tensor.format) and tensor.hint for tensor in read)
    return floats and any(tensor.format.startswith("int") and tensor.hint for tensor in read)


def _largest(value: str, context: Context) -> int:
    """The largest number of an integer value that comes from a range; 0 where nothing is known."""
    op = context.maker[value]
    while op.kind in _HANDING_ON and op.operands and context.tensors[value].format.startswith("int"):
        value = op.operands[0].value
        op = context.maker[value]
    given = dict(op.attributes)
    if op.op != "arange" or not op.outputs[0].format.startswith("int"):
        return 0
    start, step = given.get("start", 0), given.get("step", 1)
    if not isinstance(start, int) or not isinstance(step, int):
        return 0
    return max(abs(start), abs(start + step * (op.outputs[0].hint[0] - 1)))


def bad() -> Example:
    import torch
    from torch import nn

    class Weighted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weighted = x * torch.arange(x.shape[-1])  # PA308
            return torch.relu(weighted)

    return Example(Weighted(), (torch.rand(2, 1000),))


def good() -> Example:
    import torch
    from torch import nn

    class Weighted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weighted = x * torch.arange(x.shape[-1])
            return torch.relu(weighted)

    return Example(Weighted(), (torch.rand(2, 200),))
