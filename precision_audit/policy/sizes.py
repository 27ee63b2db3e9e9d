"""Sizes of an op that a policy may ask about: k, n, m of a GEMM or convolution, and numel, rank, depth of any op.

Takes an op and the tensors of its graph; gives a `Size`, an integer or an expression in the model's symbolic
dimensions with the example's integer beside it, or None where the op has no such size (a relu has no K). Then the key
may still name one of the op's own arguments, which is why `k` of a topk is its argument.

y[M, N] sums over K: a linear's weight is [N, K], a convolution's [N, in-channels per group, kernel…].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from precision_audit import ops
from precision_audit.divisible import product
from precision_audit.records import Op, Tensor


@dataclass(frozen=True, slots=True)
class Size:
    """`value` is an integer or an expression such as `8*B`; `example` is its value in the example."""

    value: int | str
    example: int


def size_of(op: Op, key: str, tensors: Mapping[str, Tensor]) -> Size | None:
    """The size called `key` (see `policy_schema.SIZES`), None where the op has none."""
    if key in ("k", "n", "m"):
        measured = _GEMMS.get(op.op)
        if measured is None:
            return None
        inputs = {operand.argument: tensors[operand.value] for operand in reversed(op.operands)}
        return dict(zip("knm", measured(op, inputs), strict=True))[key]
    if key == "numel" and op.outputs:
        return _product(op.outputs[0], slice(None))
    if key == "rank" and op.outputs:
        return Size(len(op.outputs[0].shape), len(op.outputs[0].shape))
    if key == "depth":
        depth = ops.reduction_depth(op, [tensors[operand.value] for operand in op.operands])
        return None if depth is None else Size(depth, depth)
    return None


def _linear(op: Op, inputs: Mapping[str, Tensor]) -> tuple[Size, Size, Size]:
    weight, entering = inputs["weight"], inputs["input"]
    rows = 0 if len(weight.shape) > 1 else None  # a weight of one dimension makes a single output
    return _axis(weight, -1), _axis(weight, rows), _product(entering, slice(None, -1))


def _matmul(left: str, right: str) -> Callable[[Op, Mapping[str, Tensor]], tuple[Size, Size, Size]]:
    def measured(op: Op, inputs: Mapping[str, Tensor]) -> tuple[Size, Size, Size]:
        a, b = inputs[left], inputs.get(right, inputs[left])  # x @ x reads one value twice
        return (
            _axis(a, -1),
            _axis(b, -1 if len(b.shape) > 1 else None),
            _axis(a, -2 if len(a.shape) > 1 else None),
        )

    return measured


def _convolution(op: Op, inputs: Mapping[str, Tensor]) -> tuple[Size, Size, Size]:
    weight, made = inputs["weight"], op.outputs[0]
    kernel = _product(weight, slice(1, None))
    batched = len(made.shape) == len(weight.shape)
    positions = Tensor(made.format, *_without(made, 1 if batched else 0))
    return kernel, _axis(weight, 0), _product(positions, slice(None))


def _without(tensor: Tensor, axis: int) -> tuple[tuple[int | str, ...], tuple[int, ...]]:
    return tensor.shape[:axis] + tensor.shape[axis + 1 :], tensor.hint[:axis] + tensor.hint[axis + 1 :]


@lru_cache(maxsize=4096)
def _multiplied(sizes: tuple[int | str, ...]) -> int | str:
    return product(sizes)


def _axis(tensor: Tensor, axis: int | None) -> Size:
    return Size(1, 1) if axis is None or not tensor.shape else Size(tensor.shape[axis], tensor.hint[axis])


def _product(tensor: Tensor, part: slice) -> Size:
    return Size(_multiplied(tensor.shape[part]), math.prod(tensor.hint[part]))


_GEMMS: Mapping[str, Callable[[Op, Mapping[str, Tensor]], tuple[Size, Size, Size]]] = {
    "linear": _linear,
    "matmul": _matmul("self", "other"),
    "mm": _matmul("self", "mat2"),
    "bmm": _matmul("self", "mat2"),
    "addmm": _matmul("mat1", "mat2"),
    "baddbmm": _matmul("batch1", "batch2"),
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "convolution": _convolution,
}
