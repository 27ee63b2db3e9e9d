"""The scale of each group, as the libraries compute it, down to the format of every quotient.

Takes groups [groups, size] and their amax; gives what is to be rounded, the scale, and whether elements are multiplied
by it (`inverse`) or divided to restore them. The order of operations decides the last bit, so it is torchao 0.18's:

    fp32, power of two   float8/float8_utils.py; amax at least 1e-12, the quotient in fp64
    reciprocal           prototype/blockwise_fp8_training/kernels.py: the same, restored by 1 / scale
    e8m0                 prototype/mx_formats/mx_tensor.py
    e4m3                 prototype/mx_formats/nvfp4_tensor.py, the scale of the tensor from its amax
    steps                quantization/quant_primitives.py: symmetric, quotient in the tensor's own format
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from precision_audit.formats import FORMATS, Format

_LEAST = 1e-12  # amax below it is taken for it (torchao's EPS)
_BIAS = 127  # of e8m0, and of fp32's exponent


class Scaling(NamedTuple):
    values: Tensor  # to be rounded
    scale: Tensor
    inverse: bool


def scaled(values: Tensor, amax: Tensor, element: Format, kind: str, scale_mode: str, dtype: torch.dtype) -> Scaling:
    if kind == "e8m0":
        return _rceil(values, amax, element) if scale_mode == "rceil" else _floor(values, amax, element)
    if kind == "e4m3":
        return _two_levels(values, amax, element)
    if kind == "steps":
        return _steps(values, amax, dtype)
    scale = (element.max_finite / amax.double().clamp(min=_LEAST)).float()
    if kind == "power of two":
        scale = scale.log2().floor().exp2()
    return Scaling(values * scale, 1.0 / scale if kind == "reciprocal" else scale, kind == "reciprocal")


def _rceil(values: Tensor, amax: Tensor, element: Format) -> Scaling:
    """The least power of two that brings amax within the format. A scale of 2^-127, the least there is, is not applied
    to the values (torchao's quirk: they are below every element then, and vanish)."""
    quotient = amax / element.max_finite
    power = quotient.log2().ceil().clamp(-_BIAS, _BIAS)
    power = torch.where(torch.isinf(quotient), float(_BIAS), power)
    factor = torch.where(power == -_BIAS, 1.0, torch.exp2(-power))
    return Scaling(values * factor, torch.pow(2.0, power), True)  # NaN of the amax goes through both


def _floor(values: Tensor, amax: Tensor, element: Format) -> Scaling:
    """The power of two of amax over the format's largest power of two. The values are scaled by at least 2^-126, fp32's
    least normal number, the elements restored by 2^-127."""
    highest = math.frexp(element.max_finite)[1] - 1
    exponent = (amax.view(torch.int32) >> 23) - _BIAS
    power = (exponent - highest).clamp(min=-_BIAS).float()
    scale = torch.where(torch.isnan(amax), amax, torch.pow(2.0, power))
    # over a NaN amax torchao divides by infinity: the elements do not matter, the scale is NaN
    return Scaling(values / scale.clamp(min=2.0**-126), scale, True)


def _two_levels(values: Tensor, amax: Tensor, element: Format) -> Scaling:
    """e4m3 scales of blocks under one fp32 scale of the tensor, by which the block of the largest amax has the scale
    448. Scales of blocks are at least 2^-6, e4m3's least normal number."""
    outer = FORMATS["fp8_e4m3fn"]
    assert outer.min_normal is not None
    tensor = amax.amax() / (outer.max_finite * element.max_finite)
    block = (amax / element.max_finite / tensor).clamp(outer.min_normal, outer.max_finite)
    block = block.to(torch.float8_e4m3fn).float()
    return Scaling(values * ((1.0 / tensor) / block), tensor * block, True)


def _steps(values: Tensor, amax: Tensor, dtype: torch.dtype) -> Scaling:
    """127.5 steps to amax, of at least fp32's epsilon."""
    step = (amax.to(dtype) / 127.5).clamp(min=torch.finfo(torch.float32).eps).float()
    return Scaling(values * (1.0 / step), step, True)
