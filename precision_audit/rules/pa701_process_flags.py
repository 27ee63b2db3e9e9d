"""PA701 process flags that weaken sums

What it does: reports flags of the auditing process under which products are summed in less than fp32: reductions of
split sums in the low format and fp16 accumulators on CUDA, and fp32 products computed from bf16 parts on a CPU (on CUDA
the same setting means TF32, which PA703 reports).
Why it is a hazard: none of it is in the graph. A sum of K products in an fp16 accumulator loses half of its digits by
K = 1000 and overflows where the result would not; what the policy keeps in fp32 is not fp32.
What to do: set the flag in the process that runs the model, or in the policy's `environment:`.
References: PyTorch's notes on CUDA semantics and numerical accuracy; torch.set_float32_matmul_precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from precision_audit import ops
from precision_audit.analyse.flags import CPU_MATMUL, FP16_SUMS, FP32_PRODUCTS, REDUCED_BF16, REDUCED_FP16
from precision_audit.records import Evidence, Finding, Op, Severity
from precision_audit.rules import Context, Example, found
from precision_audit.verify.limits import limit

_PRODUCTS = ("matmul", "conv")
_MEDIUM = ((FP32_PRODUCTS, "medium"), (CPU_MATMUL, "bf16"))  # either makes bf16 parts of fp32 products on a CPU
_DEEP = 2048  # products in one sum, from which on CUDA libraries split it


def check(context: Context) -> Iterator[Finding]:
    on = dict(context.facts.flags)
    set_by_policy = {name.rpartition(".")[2] for name, _ in context.policy.environment}
    cuda, low = context.hardware.kernels == "cuda", context.policy.low
    deepest = _deepest(context)
    for name, format in ((REDUCED_FP16, "fp16"), (REDUCED_BF16, "bf16"), (FP16_SUMS, "fp16")):
        if name not in on or not cuda or low != format or not context.policy.lowers or deepest is None:
            continue
        if name.rpartition(".")[2] in set_by_policy:
            continue
        op, depth = deepest
        if name == FP16_SUMS:
            yield _sums_in_fp16(context, op, depth)
        elif depth >= _DEEP:
            yield _reduced(name, format, op, depth)
    medium = next((f"{name} is {on[name]}" for name, value in _MEDIUM if on.get(name) == value), "")
    kept = _kept(context) if medium and not cuda and "fp32_precision" not in set_by_policy else None
    if kept is not None:
        yield _medium(kept, medium)


def _reduced(name: str, format: str, op: Op, depth: int) -> Finding:
    return found(
        __name__,
        "note",
        op,
        f"{op.op} sums {depth} products → CUDA may add the parts of a split sum in {format} (PyTorch's default)",
        Evidence("ASSUMED", f"{name} is true in this process", (("depth", float(depth)),)),
        remedy=f"{name} = False",
        of=name,
    )


def _sums_in_fp16(context: Context, op: Op, depth: int) -> Finding:
    error = sqrt(depth) * (context.low.unit_roundoff or 0.0)  # rounding errors of either sign, one per addition
    allowed = limit(context.policy, "relative_l2", "") or 0.0
    severity: Severity = "warning" if error > allowed else "note"
    numbers = (("depth", float(depth)), ("error", error), ("tolerance", allowed))
    return found(
        __name__,
        severity,
        op,
        f"{op.op} sums {depth} products in an fp16 accumulator → off by about {error:.1e}, infinite beyond 65504",
        Evidence("PROVED", f"{FP16_SUMS} is true in this process", numbers),
        remedy=f"{FP16_SUMS} = False",
        of=FP16_SUMS,
    )


def _medium(op: Op, said: str) -> Finding:
    return found(
        __name__,
        "warning",
        op,
        f"{op.op} is kept in fp32 → this process lets fp32 products be computed from bf16 parts (8 bits)",
        Evidence("PROVED", f"{said} in this process"),
        remedy='torch.set_float32_matmul_precision("highest")'
        if said.startswith(FP32_PRODUCTS)
        else f'{CPU_MATMUL} = "ieee"',
        of=FP32_PRODUCTS,
    )


def _deepest(context: Context) -> tuple[Op, int] | None:
    """The product with the longest sum; the first of several."""
    found: tuple[Op, int] | None = None
    for op in context.computed():
        if op.kind == "matmul":
            depth = ops.reduction_depth(op, [context.tensors[operand.value] for operand in op.operands])
            if depth is not None and (found is None or depth > found[1]):
                found = op, depth
    return found


def _kept(context: Context) -> Op | None:
    """The first product that stays fp32."""
    for op in context.computed():
        if op.kind in _PRODUCTS and context.policy.high == "fp32" and context.decisions[op.key].chosen == "fp32":
            return op
    return None


def bad() -> Example:
    import torch
    from torch import nn

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 4096) / 4096)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight)  # PA701

    return Example(Deep(), (torch.ones(2, 4096),), policy=_ON_CUDA)


def good() -> Example:
    import torch
    from torch import nn

    class Shallow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 64) / 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight)

    return Example(Shallow(), (torch.ones(2, 64),), policy=_ON_CUDA)


_ON_CUDA = "name: on-cuda\nextends: fp16-inference\ndevice: h100\n"
