"""PA306 functional linear

What it does: reports a linear that the policy made fp8-eligible and whose weight is not the `weight` of a module called
there: attention's `in_proj_weight`, a weight computed in every step, another layer's weight read in passing.
Why it is a hazard: swapping replaces a module, and here is none. Tools that walk over modules count such layers as
converted (the output projection of nn.MultiheadAttention is the known case) while they run in high precision.
What to do: give the projection a module of its own (`self.qkv = nn.Linear(d, 3 * d)`), or accept the low format.
References: `torch.nn.functional.multi_head_attention_forward` reads the weights of its modules directly.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding, Graph, Op
from precision_audit.rules import Context, Example, found

_LINEAR = "torch.nn.modules.linear.Linear"


def check(context: Context) -> Iterator[Finding]:
    ops = context.by_key()
    for refusal in context.refusals:
        op = ops[refusal.op]
        if not is_functional(op, context.graph):
            continue
        stays = context.decisions[op.key].chosen or context.policy.low
        yield found(
            __name__,
            "note",
            op,
            f"{op.module or 'the model'}: linear over {_weight(op)}, no nn.Linear's that is called here; stays {stays}",
            Evidence("PROVED", f"backend {refusal.backend}: {refusal.reason}"),
            remedy="make the projection an nn.Linear of its own",
        )


def is_functional(op: Op, graph: Graph) -> bool:
    """Whether the op is a linear that no module's own forward computes."""
    if op.op != "linear":
        return False
    weight = _weight(op)
    own = f"{op.module}.weight" if op.module else "weight"
    tied = next((group for group in graph.storages if weight in group), (weight,))
    return op.module_type != _LINEAR and own not in tied


def _weight(op: Op) -> str:
    return next((operand.value for operand in op.operands if operand.argument == "weight"), "")


def bad() -> Example:
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in_proj_weight = nn.Parameter(torch.randn(48, 16))
            self.out = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = nn.functional.linear(x, self.in_proj_weight).chunk(3, -1)  # PA306
            y: torch.Tensor = self.out(nn.functional.scaled_dot_product_attention(q, k, v))
            return y

    return Example(Attention(), (torch.randn(2, 8, 16),), policy="fp8-training-hopper")


def good() -> Example:
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)
            self.out = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            y: torch.Tensor = self.out(nn.functional.scaled_dot_product_attention(q, k, v))
            return y

    return Example(Attention(), (torch.randn(2, 8, 16),), policy="fp8-training-hopper")
