"""Quantise: what a tensor becomes in fp8, fp4 or int8 with the scales that a recipe gives it, emulated exactly.

Takes a tensor, a scheme and the operand that it is; gives the values that a quantised product sees (`quantised`), the
product itself (`product`), or elements and scales apart (`encoded`). One row of `SCHEMES` per scheme, named as the
block formats of `formats.FORMATS` are. The arithmetic is ours and needs torch alone; the tests hold it to torchao's
own, bit for bit, on the CPU. Never changes a tensor, never decides what is good enough.

    scheme             groups: input, gradient    weight    scale
    fp8_tensorwise     the whole tensor           same      fp32: largest finite value over amax
    fp8_rowwise        a row                      same      the same, rounded down to a power of two
    fp8_blockwise_128  1 x 128                    128 x 128 fp32
    mxfp8_e4m3, mxfp4  1 x 32                     same      e8m0 (a power of two)
    nvfp4              1 x 16                     same      e4m3, with an fp32 scale of the whole tensor above it
    int8               a row                      same      fp32: 127.5 steps to amax

Rows run along the last axis, which is the one summed over: K of x[M, K] and of weight[N, K], N of a gradient [M, N] in
the product that gives the gradient of the input. Gradients are e5m2 under fp8_tensorwise, else what inputs are.

What is not plain:
    ragged sizes    padded with zeros to whole groups, and cut again. Libraries refuse them: see `recipes`.
    all zeros       give zeros; under nvfp4 NaN, as in torchao, whose scale of the tensor is then 0 / 0
    amax < 7.9e-36  (nvfp4) the reciprocal of the tensor's scale is beyond fp32: zeros beside it give NaN, where
                    torchao's fp4, which has none, makes some number of them
    NaN, infinity   NaN spoils its group (under nvfp4 the tensor); an infinity too, under a scale that is a quotient;
                    under mx schemes the group's amax saturates to the largest element times the largest scale, or inf
    amax < 1e-12    (fp8) is scaled as if it were 1e-12: torchao's guard against division by zero
    mx scales       `RCEIL` (the default of torchao's configs and of Blackwell's instruction) takes the power of two at
                    or above amax over the largest element, so nothing saturates; `FLOOR` (OCP MX v1.0, section 6.3)
                    that at or below amax over the largest power of two: amax becomes up to 512 under e4m3, 8 under fp4,
                    and what is beyond 448 or 6 saturates
    formats         fp32, bf16 and fp16 (torchao refuses fp16 under mx and nvfp4); fp64 is read as fp32
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from precision_audit.records import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from precision_audit.quantise.encoding import Encoded

Operand = Literal["input", "weight", "gradient"]
ScaleMode = Literal["rceil", "floor"]
Group = tuple[int, int]  # rows and columns that share a scale; 0 is all of them

WHOLE: Group = (0, 0)
ROW: Group = (1, 0)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the operands of a linear are quantised: a number format for elements, who shares a scale, and which."""

    name: str
    element: str  # a format of `formats.FORMATS`
    gradient: str  # likewise, of gradients
    group: Group  # of inputs and gradients
    group_weight: Group
    scale: Literal["fp32", "power of two", "reciprocal", "e8m0", "e4m3", "steps"]

    def format_of(self, operand: Operand) -> str:
        return self.gradient if operand == "gradient" else self.element

    def group_of(self, operand: Operand) -> Group:
        return self.group_weight if operand == "weight" else self.group


_ROWS = (
    Scheme("fp8_tensorwise", "fp8_e4m3fn", "fp8_e5m2", WHOLE, WHOLE, "fp32"),
    Scheme("fp8_rowwise", "fp8_e4m3fn", "fp8_e4m3fn", ROW, ROW, "power of two"),
    Scheme("fp8_blockwise_128", "fp8_e4m3fn", "fp8_e4m3fn", (1, 128), (128, 128), "reciprocal"),
    Scheme("mxfp8_e4m3", "fp8_e4m3fn", "fp8_e4m3fn", (1, 32), (1, 32), "e8m0"),
    Scheme("mxfp4", "fp4_e2m1", "fp4_e2m1", (1, 32), (1, 32), "e8m0"),
    Scheme("nvfp4", "fp4_e2m1", "fp4_e2m1", (1, 16), (1, 16), "e4m3"),
    Scheme("int8", "int8", "int8", ROW, ROW, "steps"),
)

SCHEMES: Mapping[str, Scheme] = MappingProxyType({row.name: row for row in _ROWS})


def quantised(tensor: Tensor, scheme: str, operand: Operand = "input", scale_mode: ScaleMode = "rceil") -> Tensor:
    """The tensor quantised and restored: same shape and format. `scale_mode` counts for the mx schemes alone."""
    return encoded(tensor, scheme, operand, scale_mode).restored().to(tensor.dtype)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, scheme: str, scale_mode: ScaleMode = "rceil") -> Tensor:
    """x[..., K] · weight[N, K] transposed, both quantised, summed in fp32 and rounded once to the format of `x`; the
    bias is added in that format, as torchao does."""
    operands = encoded(x, scheme, "input", scale_mode), encoded(weight, scheme, "weight", scale_mode)
    made = (operands[0].restored() @ operands[1].restored().mT).to(x.dtype)
    return made if bias is None else made + bias.to(made.dtype)


def encoded(tensor: Tensor, scheme: str, operand: Operand = "input", scale_mode: ScaleMode = "rceil") -> Encoded:
    """Elements, scales and amax of every group."""
    from precision_audit.quantise.encoding import encode

    return encode(tensor, named(scheme), operand, scale_mode)


def named(scheme: str) -> Scheme:
    """The scheme of that name."""
    row = SCHEMES.get(scheme)
    if row is None:
        near = difflib.get_close_matches(scheme, SCHEMES, 1)
        use = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(SCHEMES)}"
        raise InputError(f"scheme {scheme!r}: no such quantisation; expected a name of quantise.SCHEMES; {use}")
    return row
