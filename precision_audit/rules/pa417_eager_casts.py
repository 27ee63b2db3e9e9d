"""PA417 swaps are slow without torch.compile

What it does: says once, of a model with swapped linears, that it has to be compiled to be faster, and with what.
Why it is a hazard: the swap is right either way, but in eager mode the largest magnitude, the scale and the cast of
every input are kernels of their own, each of which reads and writes the whole tensor; compiled, they are fused into one
pass or into the op before. A weight that alone is stored quantised is widened to the low format by a kernel of its own
before each product, where a compiled kernel widens it on its way. Uncompiled fp8 is commonly slower than bf16, which
looks like a fault of fp8.
What to do: `torch.compile(result.module)` before training or serving; compare times compiled against compiled.
References: torchao's float8 README; pytorch/ao issues 1199 and 2262.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from precision_audit import recipes
from precision_audit.formats import bytes_of
from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found

if TYPE_CHECKING:
    from torch import nn

_FUSED = ("torchao", "torchao_quantize")  # TransformerEngine's casts are kernels of its own, compiled or not
_DOES = {"input": "scales and casts its input in kernels", "weight": "widens its weight in a kernel"}


def check(context: Context) -> Iterator[Finding]:
    ops = context.by_key()
    fused = [swap for swap in context.swaps if swap.backend in _FUSED]
    of_weights = {(row.backend, row.name) for row in recipes.RECIPES.values() if not row.activations}
    weights = [swap for swap in fused if (swap.backend, swap.recipe) in of_weights]
    for argument, swaps in (("input", [swap for swap in fused if swap not in weights]), ("weight", weights)):
        if not swaps:
            continue
        spent = sum(_extra(context, ops[swap.op], argument) for swap in swaps)
        of = ", ".join(f"{number} {kind}" for kind, number in sorted(Counter(swap.kind for swap in swaps).items()))
        more = f"predicted at least {spent * 1e6:.3g} µs more forward on {context.hardware.name}"
        yield found(
            __name__,
            "note",
            ops[swaps[0].op],
            f"{of}: uncompiled, each {_DOES[argument]} of its own, {more}",
            Evidence("ASSUMED", f"bandwidth and launch of {context.hardware.name}", (("seconds", spent),)),
            remedy="torch.compile(result.module), and compare times compiled against compiled",
            of="" if argument == "input" else argument,
        )


def _extra(context: Context, op: Op, argument: str) -> float:
    """Seconds of forward that fusion saves. Input: absolute value, clamp and cast each in a kernel, of which compiled
    code makes one pass: two more launches, and the input written and read twice more in the low format. Weight: one
    more launch, and the widened weight written and read once."""
    times = 2 if argument == "input" else 1
    elements = prod(context.tensors[context.operand(op, argument)].hint)
    moved = times * 2 * elements * bytes_of(context.policy.low)
    return times * context.hardware.launch + moved / context.hardware.bandwidth


def bad() -> Example:
    return _example(width=64)


def good() -> Example:
    return _example(width=60)  # refused, so nothing is cast


def _example(width: int) -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.fc(x)  # PA417
            return y

    model: nn.Module = Net()
    args: tuple[Any, ...] = (torch.randn(32, 64),)
    return Example(model, args, policy="fp8-training-hopper")
