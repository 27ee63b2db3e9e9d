"""PA417 swaps are slow without torch.compile

What it does: says once, of a model with swapped linears, that it has to be compiled to be faster, and with what.
Why it is a hazard: the swap is right either way, but in eager mode the largest magnitude, the scale and the cast of
every input are kernels of their own, each of which reads and writes the whole tensor; compiled, they are fused into one
pass or into the op before. Uncompiled fp8 is commonly slower than bf16, which looks like a fault of fp8.
What to do: `torch.compile(result.module)` before training or serving; compare times compiled against compiled.
References: torchao's float8 README; pytorch/ao issues 1199 and 2262.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit import recipes
from precision_audit.formats import bytes_of
from precision_audit.records import Evidence, Finding, Op, Swap
from precision_audit.rules import Context, Example, found

if TYPE_CHECKING:
    from torch import nn

_FUSED = ("torchao", "torchao_quantize")  # TransformerEngine's casts are kernels of its own, compiled or not


def check(context: Context) -> Iterator[Finding]:
    ops = context.by_key()
    cast = [swap for swap in context.swaps if _casts_input(swap)]
    if not cast:
        return
    first = ops[cast[0].op]
    spent = sum(_extra(context, ops[swap.op]) for swap in cast)
    of = ", ".join(f"{number} {kind}" for kind, number in sorted(Counter(swap.kind for swap in cast).items()))
    more = f"predicted at least {spent * 1e6:.3g} µs more forward on {context.hardware.name}"
    yield found(
        __name__,
        "note",
        first,
        f"{of}: uncompiled, each scales and casts its input in kernels of its own, {more}",
        Evidence("ASSUMED", f"bandwidth and launch of {context.hardware.name}", (("seconds", spent),)),
        remedy="torch.compile(result.module), and compare times compiled against compiled",
    )


def _casts_input(swap: Swap) -> bool:
    row = recipes.RECIPES.get((swap.backend, swap.recipe))
    return swap.backend in _FUSED and (row is None or row.activations)


def _extra(context: Context, op: Op) -> float:
    """Seconds of forward that fusion saves: absolute value, clamp and cast of the input each in a kernel, of which
    compiled code makes one pass: two more launches, and the input written and read twice more in the low format."""
    entering = context.tensors[context.operand(op, "input")]
    elements = 1
    for size in entering.hint:
        elements *= size
    moved = 4 * elements * bytes_of(context.policy.low)
    return 2 * context.hardware.launch + moved / context.hardware.bandwidth


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
