"""A linear in torchao's inference quantisation, real or emulated: the module that `torchao_quantize` puts in place.

Takes weight and bias of a linear and a recipe of `torchao_quantize`. Real: the weight is torchao's quantised tensor, as
`quantize_` leaves it in an nn.Linear, and the product is torch's own for that tensor. Emulated: the weight is the
linear's Parameter, untouched; in every call torchao's quantisers round weight and input, and an ordinary product in
fp32 of what they hold is rounded to bf16, which is what a kernel with fp32 sums does. Which of both is a property of
the device that the weight is on: see `quantise`.

Computes in bf16 and returns the input's format. Has no gradient for its weight. Not part of an exported program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precision_audit.backends import torchao_quantize
from precision_audit.backends._torchao import quietly
from precision_audit.recipes import recipe as recipe_of
from precision_audit.records import InputError

_COMPUTES = torch.bfloat16  # what the recipes' kernels write
_LEAST = 1e-12  # of a largest magnitude under a scale: torchao's own in training


class QuantisedLinear(nn.Module):
    """y = x · weight transposed + bias, both factors quantised as the recipe says."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, weight: Tensor, bias: Tensor | None, recipe: str) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.recipe = recipe
        assert isinstance(weight, nn.Parameter) and (bias is None or isinstance(bias, nn.Parameter))
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)
        # nn.TransformerEncoder's fast path reads the weights of its linears instead of calling them, but for hooks
        self.register_forward_pre_hook(_called)
        self.quantise()

    @property
    def emulated(self) -> bool:
        return type(self.weight) is nn.Parameter

    def quantise(self) -> bool:
        """Turn the weight into torchao's tensor where its device can run the recipe; whether anything changed."""
        if not self.emulated or not _runs_on(self.weight.device, self.recipe):
            return False
        with quietly(), torch.no_grad():
            from torchao.quantization import quantize_

            linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
            linear.weight = nn.Parameter(self.weight.detach().to(_COMPUTES), requires_grad=False)
            quantize_(linear, _CONFIGS[self.recipe]())
        if type(linear.weight) is nn.Parameter:
            sizes = f"{self.in_features} -> {self.out_features}"
            raise InputError(
                f"torchao left a linear {sizes} unquantised under {self.recipe}: keep it out of the policy's fp8 rule"
            )
        self.weight = _without_division_by_zero(linear.weight)
        return True

    def forward(self, x: Tensor) -> Tensor:
        if not x.numel():  # nothing to scale by, and int8dq raises
            return x.new_empty(*x.shape[:-1], self.out_features)
        bias = None if self.bias is None else self.bias.to(_COMPUTES)
        given = x.to(_COMPUTES)
        made = F.linear(given, self.weight, bias) if not self.emulated else self._emulate(given, bias)
        return made.to(x.dtype)

    def _emulate(self, x: Tensor, bias: Tensor | None) -> Tensor:
        quantiser = _QUANTISERS[self.recipe]
        with torch.no_grad():
            weight = quantiser(self.weight.to(_COMPUTES))
            rounded = quantiser(x.reshape(-1, self.in_features))
        made = F.linear(rounded.float(), weight.float(), None if bias is None else bias.float())
        return made.to(_COMPUTES).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        how = ", emulated" if self.emulated else ""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, recipe={self.recipe}{how}"


def _called(_module: nn.Module, _inputs: tuple[Tensor, ...]) -> None:
    """Changes nothing; that it is there has the module called."""


def _runs_on(device: torch.device, recipe: str) -> bool:
    """Whether torchao has the recipe's kernels there. What this asks of the machine, `lacking` asks of a table."""
    if device.type == "cpu":
        return torchao_quantize.runs_on_cpu(recipe)
    if device.type != "cuda":
        return False
    row = recipe_of(torchao_quantize.NAME, recipe)
    if torch.version.hip is not None:
        name = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        return not (row.minimum or row.only) or name in row.rocm
    major, minor = torch.cuda.get_device_capability(device)
    least = tuple(int(part) for part in (row.minimum or "0.0").split("."))
    below = tuple(int(part) for part in (row.below or "99.0").split("."))
    return least <= (major, minor) < below and (not row.only or f"{major}.{minor}" in row.only)


# configurations, as torchao's benchmarks make them of these names ----------------------------------------------------


def _float8(granularity: str) -> Any:
    from torchao import quantization

    config = quantization.Float8DynamicActivationFloat8WeightConfig
    made = getattr(quantization, granularity)()
    return config(granularity=made, activation_value_lb=_LEAST, set_inductor_config=False)


def _float8_weight() -> Any:
    from torchao.quantization import Float8WeightOnlyConfig

    return Float8WeightOnlyConfig(set_inductor_config=False)


def _int8() -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)


def _int8_weight() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig(set_inductor_config=False)


def _mx(element: str) -> Any:
    from torchao.prototype.mx_formats.inference_workflow import MXDynamicActivationMXWeightConfig

    format_ = getattr(torch, element)
    return MXDynamicActivationMXWeightConfig(activation_dtype=format_, weight_dtype=format_)


def _nvfp4() -> Any:
    from torchao.prototype.mx_formats.inference_workflow import NVFP4DynamicActivationNVFP4WeightConfig

    return NVFP4DynamicActivationNVFP4WeightConfig()


_CONFIGS: dict[str, Callable[[], Any]] = {
    "float8dq-row": lambda: _float8("PerRow"),
    "float8dq-tensor": lambda: _float8("PerTensor"),
    "float8wo": _float8_weight,
    "int8dq": _int8,
    "int8wo": _int8_weight,
    "mxfp8": lambda: _mx("float8_e4m3fn"),
    "mxfp4": lambda: _mx("float4_e2m1fn_x2"),
    "nvfp4": _nvfp4,
}


# emulation: torchao's quantisers, run anywhere ------------------------------------------------------------------------


def _as_float8(x: Tensor, granularity: str) -> Tensor:
    with quietly():
        from torchao import quantization
        from torchao.quantization.quantize_.workflows import Float8Tensor

    made = getattr(quantization, granularity)()
    quantised: Tensor = Float8Tensor.from_hp(x, granularity=made, hp_value_lb=_LEAST).dequantize(torch.float32)
    return quantised


def _as_mx(x: Tensor, element: str) -> Tensor:
    with quietly():
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_tensor import MXTensor

    made = MXTensor.to_mx(x.contiguous(), getattr(torch, element), 32, scaling_mode=ScaleCalculationMode.RCEIL)
    quantised: Tensor = made.dequantize(torch.float32)
    return quantised


def _as_nvfp4(x: Tensor) -> Tensor:
    with quietly():
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    made = NVFP4Tensor.to_nvfp4(x.contiguous(), per_tensor_scale=per_tensor_amax_to_scale(x.abs().max()))
    quantised: Tensor = made.dequantize(torch.float32)
    return quantised


_QUANTISERS: dict[str, Callable[[Tensor], Tensor]] = {
    "float8dq-row": lambda x: _as_float8(x, "PerRow"),
    "float8dq-tensor": lambda x: _as_float8(x, "PerTensor"),
    "mxfp8": lambda x: _as_mx(x, "float8_e4m3fn"),
    "mxfp4": lambda x: _as_mx(x, "float4_e2m1fn_x2"),
    "nvfp4": _as_nvfp4,
}


def _without_division_by_zero(weight: nn.Parameter) -> nn.Parameter:
    """Outputs whose weights are all zero: torchao's fp8 has a scale of zero there, and NaN for 0 / 0."""
    scale, held = getattr(weight, "scale", None), getattr(weight, "qdata", None)
    if scale is None or held is None or not held.dtype.is_floating_point or held.dtype.itemsize != 1:
        return weight
    zero = scale == 0
    if bool(zero.any()):
        scale[zero] = 1.0
        held.view(torch.uint8).masked_fill_(zero.expand(held.shape), 0)  # eight zero bits are zero
    return weight
