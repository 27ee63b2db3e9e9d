"""One tensor quantised: its groups, their amax, the scales and the elements.

Takes a tensor and a row of `SCHEMES`; gives an `Encoded`. All arithmetic is in fp32, as in the libraries, but for the
quotient that is the scale: see `scales`. Groups are rows of one matrix [groups, elements per group], in the order in
which the scales lie in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from precision_audit.formats import FORMATS, format_of
from precision_audit.quantise import Group, Operand, ScaleMode, Scheme
from precision_audit.quantise.elements import rounded
from precision_audit.quantise.scales import scaled
from precision_audit.records import InputError

_TAKEN = ("fp32", "bf16", "fp16", "fp64")


@dataclass(frozen=True, slots=True)
class Encoded:
    """`elements` are values of the element format, `values` what they stand for before scaling (fp32), both
    [groups, size] with zeros where a group is padded; `amax` and `scale` are [groups, 1] (one scale for all where the
    scheme has but one). Elements are restored by dividing by `scale` or (`inverse`) by multiplying with it."""

    values: Tensor
    elements: Tensor
    amax: Tensor
    scale: Tensor
    inverse: bool
    shape: torch.Size
    group: Group

    def restored(self) -> Tensor:
        """What the elements stand for, in fp32 and in the tensor's shape."""
        made = self.elements * self.scale if self.inverse else self.elements / self.scale
        return ungrouped(made, self.shape, self.group)


def encode(tensor: Tensor, scheme: Scheme, operand: Operand, scale_mode: ScaleMode) -> Encoded:
    _check(tensor, scheme, operand, scale_mode)
    group, element = scheme.group_of(operand), FORMATS[scheme.format_of(operand)]
    with torch.no_grad():
        values = grouped(tensor.detach().float(), group)
        if not tensor.numel():
            return Encoded(values, values, values.new_zeros(0, 1), values.new_zeros(0, 1), False, tensor.shape, group)
        amax = values.abs().amax(1, keepdim=True)
        scale = scaled(values, amax, element, scheme.scale, scale_mode, tensor.dtype)
        return Encoded(values, rounded(scale.values, element), amax, scale.scale, scale.inverse, tensor.shape, group)


def grouped(tensor: Tensor, group: Group) -> Tensor:
    """[groups, elements]; zeros where a group reaches beyond the tensor."""
    rows, columns = group
    if not tensor.numel():
        return tensor.reshape(0, 1)
    if not columns:
        return tensor.reshape(-1, tensor.shape[-1]) if rows else tensor.reshape(1, -1)
    matrix = tensor if tensor.ndim > 1 else tensor[None]
    short = (-matrix.shape[-1] % columns, -matrix.shape[-2] % rows)
    if any(short):
        matrix = F.pad(matrix, (0, short[0], 0, short[1]))
    if rows == 1:
        return matrix.reshape(-1, columns)
    height, width = matrix.shape[-2] // rows, matrix.shape[-1] // columns
    return matrix.reshape(-1, height, rows, width, columns).transpose(2, 3).reshape(-1, rows * columns)


def ungrouped(groups: Tensor, shape: torch.Size, group: Group) -> Tensor:
    """The tensor of that shape whose groups these are."""
    rows, columns = group
    if not columns or not groups.numel():
        return groups.reshape(shape)
    high, wide = (shape[-2] if len(shape) > 1 else 1), shape[-1]
    height, width = -(-high // rows), -(-wide // columns)
    whole = groups.reshape(-1, height, width, rows, columns).transpose(2, 3)
    return whole.reshape(-1, height * rows, width * columns)[:, :high, :wide].reshape(shape)


def _check(tensor: Tensor, scheme: Scheme, operand: Operand, scale_mode: ScaleMode) -> None:
    what = ""
    if format_of(tensor.dtype) not in _TAKEN:
        what = f"a tensor in {format_of(tensor.dtype)}; expected {', '.join(_TAKEN)}; cast it to fp32 first"
    elif not tensor.ndim:
        what = "a tensor without axes; expected a last axis that the product sums over; reshape it to [1]"
    elif operand not in ("input", "weight", "gradient"):
        what = f"operand {operand!r}; expected input, weight or gradient"
    elif scale_mode not in ("rceil", "floor"):
        what = f"scale mode {scale_mode!r}; expected rceil or floor"
    if what:
        raise InputError(f"quantised as {scheme.name}: {what}")
