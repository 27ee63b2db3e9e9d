"""What TransformerEngine's modules compute, by torch and our own quantisers: a stand-in where there is no GPU for them.

Takes a swap and the model's own parameters; gives a module whose three products (forward, gradient of the input,
gradient of the weight) have operands quantised as the recipe does, sums in fp32 and a result rounded once to the format
of the input. Weights are quantised from the format they are stored in, gradients along the axis that is summed over.
Used to audit, never handed out: `convert` refuses where the real modules cannot be made.

What it is not: the library's kernels, their order of summation, delayed scaling's history (scales are those of the
present tensor), and NVFP4's Hadamard transforms, stochastic rounding and two-dimensional blocks. `unseen` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_audit import recipes
from precision_audit.records import Swap

if TYPE_CHECKING:
    from precision_audit.quantise import Operand

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
}
_GATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "reglu": F.relu,
    "swiglu": F.silu,
    "geglu": _ACTIVATIONS["gelu"],
    "glu": torch.sigmoid,
}


class Emulated(nn.Module):
    """Stands in for the module of `swap`. A `te.Linear` owns its parameters; a fused module knows them only."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], swap: Swap) -> None:
        super().__init__()
        self.swap = swap
        self.scheme = recipes.recipe(swap.backend, swap.recipe).scheme
        for name, value in parameters.items():
            if swap.covers:
                object.__setattr__(self, name, value)
            else:
                self.register_parameter(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return emulate(self, x, self.swap, self.scheme)


def emulate(holder: Any, x: Tensor, swap: Swap, scheme: str) -> Tensor:
    """What the module of `swap` makes of `x`, with the parameters that `holder` has by the library's names."""
    options = dict(swap.options)

    def of(name: str) -> Tensor | None:
        value: Tensor | None = getattr(holder, name, None)
        return value if value is not None and value.numel() else None  # te keeps an empty tensor for no bias

    if swap.kind == "te.Linear":
        return product(x, holder.weight, of("bias"), scheme)
    made = _normalised(x, holder.layer_norm_weight, of("layer_norm_bias"), options)
    if swap.kind == "te.LayerNormLinear":
        return product(made, holder.weight, of("bias"), scheme)
    inner = product(made, holder.fc1_weight, of("fc1_bias"), scheme)
    return product(_activated(inner, str(options["activation"])), holder.fc2_weight, of("fc2_bias"), scheme)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, scheme: str) -> Tensor:
    """x[..., K] · weight[N, K] transposed, quantised forward and backward."""
    made: Tensor = _Product.apply(x, weight, scheme)  # type: ignore[no-untyped-call]
    return made if bias is None else made + bias.to(made.dtype)


def _normalised(x: Tensor, weight: Tensor, bias: Tensor | None, options: Mapping[str, object]) -> Tensor:
    """In fp32 from the input as it comes, as the library's kernels do."""
    eps, shape = float(str(options["eps"])), weight.shape
    if options["normalization"] == "RMSNorm":
        return F.rms_norm(x.float(), shape, weight.float(), eps).to(x.dtype)
    return F.layer_norm(x.float(), shape, weight.float(), None if bias is None else bias.float(), eps).to(x.dtype)


def _activated(x: Tensor, activation: str) -> Tensor:
    if activation in _ACTIVATIONS:
        return _ACTIVATIONS[activation](x.float()).to(x.dtype)
    first, second = x.float().chunk(2, -1)
    return (_GATES[activation](first) * second).to(x.dtype)


class _Product(torch.autograd.Function):
    """Both gradients are made whether or not they are asked for: cheap enough on what an audit runs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scheme: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.scheme = scheme
        made = _quantised(x, scheme, "input") @ _quantised(weight, scheme, "weight").mT
        return made.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        scheme: str = ctx.scheme
        along_n = _quantised(weight.mT.contiguous(), scheme, "weight").mT
        of_input = (_quantised(gradient, scheme, "gradient") @ along_n).to(x.dtype)
        rows, entering = gradient.flatten(0, -2), x.flatten(0, -2)
        left = _quantised(rows.mT.contiguous(), scheme, "gradient")  # [N, M]: summed over M
        right = _quantised(entering.mT.contiguous(), scheme, "input")  # [K, M]
        of_weight = (left @ right.mT).to(x.dtype).to(weight.dtype)
        return of_input, of_weight, None


def _quantised(value: Tensor, scheme: str, operand: Operand) -> Tensor:
    """As the recipe quantises it, in a format that sums are made in. Zeros stay zeros: the library's scale of a tensor
    is finite where its maximum is zero (`reference_nvfp4.py`), that of torchao, which `quantised` follows, is not."""
    from precision_audit.quantise import quantised

    made = quantised(value, scheme, operand) if value.any() else value
    return made.to(torch.float32) if made.dtype in (torch.bfloat16, torch.float16) else made
