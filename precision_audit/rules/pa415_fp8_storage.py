"""PA415 parameter stored in fp8 where nothing computes in it

What it does: reports an op that reads a parameter or buffer in fp8 and has no scaled kernel for it: one that a policy
pins to fp8, or one of a model whose state is in fp8 already.
Why it is a hazard: float8 takes no part in type promotion. A norm's weight, a bias or a table stored in it meets a bf16
activation in `mul` or `add`, and torch raises "Promotion for Float8 Types is not supported"; products without scales
have no kernel either. Stored fp8 is a container: it must be cast up wherever it is read.
What to do: store only weights of scaled products in fp8 (a swapped linear does), the rest in bf16; or write
`self.weight.to(x.dtype)` where it is read.
References: modelscope/DiffSynth-Studio issue 855; Comfy-Org/ComfyUI issue 4474.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_audit import ops
from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found

if TYPE_CHECKING:
    from torch import nn

_STATE = ("parameter", "buffer")
_MOVES = ("view_layout", "cast", "control", "indexing", "factory")


def check(context: Context) -> Iterator[Finding]:
    for op in context.computed():
        state = [each.value for each in op.operands if context.maker[each.value].kind in _STATE]
        row = ops.row(op.op)
        kind = row.kind if row is not None else op.kind
        pinned = context.matches[op.key].rule.classification if op.key in context.matches else ""
        held = [value for value in state if context.tensors[value].format.startswith("fp8")]
        if kind in _MOVES:
            continue
        if held:
            yield _told(context, op, held[0], context.tensors[held[0]].format, pinned=False)
        elif state and pinned.startswith("pin:fp8"):
            yield _told(context, op, state[0], pinned[4:], pinned=True)


def _told(context: Context, op: Op, value: str, format: str, pinned: bool) -> Finding:
    product = op.kind in ("matmul", "conv")
    why = (
        "no kernel multiplies it without scales"
        if product
        else "Promotion for Float8 Types is not supported: torch raises where it meets another format"
    )
    scaled = "class: fp8-eligible swaps the linear for one that scales; " if product else ""
    return found(
        __name__,
        "note" if product else "warning",
        op,
        f"{op.op}: reads {value} stored in {format}; {why}",
        Evidence("PROVED", f"{value} in {format}, the op in {context.policy.low} or {context.policy.high}"),
        remedy=f"{scaled}store {value} in {context.policy.low}, or cast it where it is read",
        of=value,
        refuses=(op.key,) if pinned else (),  # what has no kernel runs low
    )


_POLICY = """name: mine
extends: bf16-inference
rules:
  - {name: stored-in-fp8, op: [mul, linear], class: "pin:fp8_e4m3fn"}
"""


def bad() -> Example:
    return _example(_POLICY)


def good() -> Example:
    return _example(_POLICY.replace("pin:fp8_e4m3fn", "safe-in-bf16"))


def _example(policy: str) -> Example:
    import torch
    from torch import nn

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
            return normed * self.weight  # PA415

    model: nn.Module = Norm()
    return Example(model, (torch.randn(4, 32),), policy=policy)
