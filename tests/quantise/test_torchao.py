"""Our emulation against torchao's own, bit for bit."""

from __future__ import annotations

import ast
import logging
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from precision_audit import quantise
from precision_audit.quantise import Operand, ScaleMode

pytest.importorskip("torchao")
logging.disable(logging.WARNING)  # torchao tells which of its compiled kernels do not fit this machine

OPERANDS: tuple[Operand, ...] = ("input", "weight", "gradient")
MODES: tuple[ScaleMode, ...] = ("rceil", "floor")
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal down to the sign of a zero; any NaN equals any NaN."""
    assert one.dtype == other.dtype and one.shape == other.shape
    both = torch.isnan(one) & torch.isnan(other)
    bits = {4: torch.int32, 2: torch.int16}[one.element_size()]
    return bool((both | (one.contiguous().view(bits) == other.contiguous().view(bits))).all())


def theirs(x: Tensor, scheme: str, operand: str, scale_mode: str = "rceil") -> Tensor:
    """torchao's quantised and restored tensor, in the format of `x`."""
    made: Tensor = _THEIRS[scheme](x, scheme, operand, scale_mode)
    return made


def _float8(x: Tensor, scheme: str, operand: str, _: str) -> Any:
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic

    rowwise = scheme == "fp8_rowwise"
    made = hp_tensor_to_float8_dynamic(
        x.t() if operand == "weight" else x,  # as its linear does: the weight transposed, scaled along its first axis
        torch.float8_e5m2 if operand == "gradient" and not rowwise else torch.float8_e4m3fn,
        None,
        scaling_granularity=ScalingGranularity.AXISWISE if rowwise else ScalingGranularity.TENSORWISE,
        axiswise_dim=(0 if operand == "weight" else -1) if rowwise else None,
        round_scales_to_power_of_2=rowwise,
    )
    restored = (made._data.float() / made._scale).to(x.dtype)  # what its emulated product multiplies
    return restored.t() if operand == "weight" else restored


def _blockwise(x: Tensor, scheme: str, operand: str, _: str) -> Any:
    kernels = _references()
    if operand == "weight":
        data, scale = kernels["torch_blockwise_scale_weight_quant"](x)
        scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    else:
        data, scale = kernels["torch_blockwise_scale_act_quant_lhs"](x)
        scale = scale.repeat_interleave(128, 1)
    return (data.float() * scale).to(x.dtype)


@cache
def _references() -> dict[str, Any]:
    """torchao's plain functions beside its Triton kernels, whose file cannot be imported without Triton."""
    import torchao

    file = Path(str(torchao.__file__)).parent / "prototype/blockwise_fp8_training/kernels.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    plain: list[ast.stmt] = [
        each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("torch_")
    ]
    found: dict[str, Any] = {"torch": torch, "Tuple": tuple, "EPS": 1e-12, "e4m3_dtype": torch.float8_e4m3fn}
    found["FP8_E4M3_DTYPES"] = {torch.float8_e4m3fn}
    exec(compile(ast.Module(plain, []), str(file), "exec"), found)
    return found


def _mx(x: Tensor, scheme: str, operand: str, scale_mode: str) -> Any:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    element = torch.float8_e4m3fn if scheme == "mxfp8_e4m3" else torch.float4_e2m1fn_x2
    return MXTensor.to_mx(x, element, 32, scaling_mode=ScaleCalculationMode[scale_mode.upper()]).dequantize(x.dtype)


def _nvfp4(x: Tensor, scheme: str, operand: str, _: str) -> Any:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max())).dequantize(x.dtype)


def _int8(x: Tensor, scheme: str, operand: str, _: str) -> Any:
    from torchao.quantization.granularity import PerRow
    from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor

    return Int8Tensor.from_hp(x, PerRow()).dequantize(x.dtype)


_THEIRS = {
    "fp8_tensorwise": _float8,
    "fp8_rowwise": _float8,
    "fp8_blockwise_128": _blockwise,
    "mxfp8_e4m3": _mx,
    "mxfp4": _mx,
    "nvfp4": _nvfp4,
    "int8": _int8,
}

CASES = [
    (scheme, operand, name, mode)
    for scheme in quantise.SCHEMES
    for operand in OPERANDS
    for name in FORMATS
    for mode in (MODES if scheme.startswith("mx") else MODES[:1])
    if not (name == "fp16" and scheme in ("mxfp8_e4m3", "mxfp4", "nvfp4"))  # which torchao refuses
]


@pytest.mark.parametrize(("scheme", "operand", "name", "mode"), CASES)
def test_random_tensors_equal_torchao_bit_for_bit(scheme: str, operand: Operand, name: str, mode: ScaleMode) -> None:
    generator = torch.Generator().manual_seed(5)
    for spread in (0.0, 1.0, 4.0):
        rows = torch.randn(256, 1, generator=generator).mul(spread).exp()
        x = (torch.randn(256, 384, generator=generator) * rows).to(FORMATS[name])
        given_ = quantise.quantised(x, scheme, operand, mode)
        assert same_bits(given_, theirs(x, scheme, operand, mode))


NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 2.0**-149, -(2.0**-140), 2.0**-126, 1e-30, 1e-12, -1e-8, 3e4, -6e4, 1e30, 3.4e38]),
    st.sampled_from([math.inf, -math.inf, math.nan]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-8, 8, width=32),
    st.sampled_from([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 448.0, 464.0, 57344.0]),  # ties and ends
)

TINY = 448 * 6 * 2.0**-128  # an amax below it: the reciprocal of the tensor's scale under nvfp4 is beyond fp32


@settings(max_examples=150, deadline=None)
@example(numbers=[2.0**-126], fill=0.0, scheme="nvfp4", operand="input", name="bf16", mode="rceil", seed=0)
@given(
    numbers=st.lists(NUMBERS, min_size=1, max_size=24),
    fill=st.sampled_from([0.0, 1.0, 1e-20, 300.0, -7e4]),
    scheme=st.sampled_from(sorted(quantise.SCHEMES)),
    operand=st.sampled_from(OPERANDS),
    name=st.sampled_from(sorted(FORMATS)),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 99),
)
def test_extremes_equal_torchao_bit_for_bit(
    numbers: list[float], fill: float, scheme: str, operand: Operand, name: str, mode: ScaleMode, seed: int
) -> None:
    size = 128 * 128 if scheme == "fp8_blockwise_128" and operand == "weight" else 128 * 2
    x = torch.full((size,), fill)
    places = torch.randperm(size, generator=torch.Generator().manual_seed(seed))[: len(numbers)]
    x[places] = torch.tensor(numbers)
    x = x.reshape(-1, 128).to(FORMATS[name])
    if name == "fp16" and scheme in ("mxfp8_e4m3", "mxfp4", "nvfp4"):
        x = x.to(torch.bfloat16)
    if scheme == "int8" and not torch.isfinite(x).all():
        # torch's cast of NaN to an integer is undefined; ours must lose the whole row, as the scale is lost
        lost = torch.isnan(quantise.quantised(x, scheme, operand)).all(1)
        assert torch.equal(lost, ~torch.isfinite(x).all(1))
        return
    ours, made = quantise.quantised(x, scheme, operand, mode), theirs(x, scheme, operand, mode)
    if scheme == "nvfp4" and 0 < float(x.abs().max()) < TINY:
        # 0 times an infinite reciprocal; torchao's fp4 has no NaN, and makes a number of it that is not told
        assert torch.equal(torch.isnan(ours), x == 0)
        ours, made = ours[x != 0], made[x != 0]
    assert same_bits(ours, made)
