"""The matrix products an op consists of, as sizes, and what share of a GPU's peak each reaches.

Takes an op and the tensors it reads; gives `Product`s: y[M, N] = Σ_K a[M, K] b[K, N], `batch` times. Training adds two
for each: the gradient of the left factor sums over N, that of the right one over M. Knows no formats and no bytes.

`share_of_peak` is why a small product is slow on a fast GPU (NVIDIA, Matrix Multiplication Background User's Guide,
chapters 2.3 and 3: tile quantisation, wave quantisation, larger tiles run more efficiently):
  the result is cut into tiles, and a tile at the edge costs as much as a whole one;
  the tiles are dealt to the multiprocessors in waves, and the last wave costs as much as a full one;
  a small tile loads more per multiplication than a large one;
  filling and draining the pipeline takes the time of a fixed number of bytes of K, whatever K is.
The library chooses the tile (and splits K where tiles are few), so the best choice counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, prod, sqrt
from typing import Literal, NamedTuple

from precision_audit import ops
from precision_audit.records import Hardware, Op, Tensor

# How the right factor lies in memory: [N, K] as the weight of a linear, [K, N], or both as rows of the sum (the
# gradient of a weight); a convolution, one over channels-last memory; attention. CPU kernels differ by it.
Layout = Literal["linear", "matmul", "outer", "conv", "conv_last", "attention"]


class Product(NamedTuple):
    m: int
    n: int
    k: int
    batch: int = 1
    layout: Layout = "matmul"

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


# Share of the dense peak that large products reach, and of the bandwidth that large elementwise kernels reach: measured
# on H100 (0.78, 0.92) and B300 (0.82, 0.84) by torchao's authors (torchao/testing/training/roofline_utils.py, 0.18.0),
# who take H100's for all other GPUs, as is done here.
ACHIEVED = 0.78
ACHIEVED_BANDWIDTH = 0.92

# Multiprocessors (compute units), from the vendors' architecture papers; a device that is not listed has no waves. A
# row of the table that says so itself (`Hardware.processors`) goes before.
MULTIPROCESSORS = {
    "p100": 56, "v100": 80, "t4": 40, "a100": 108, "a100-40gb": 108, "a10": 72, "l4": 58, "l40": 142, "l40s": 142,
    "rtx4090": 128, "rtx5090": 170, "h100": 132, "h100-pcie": 114, "h200": 132, "b200": 148, "gb200": 148, "b300": 148,
    "mi300x": 304, "mi355x": 256,
}  # fmt: skip

_TILES = ((128, 256), (256, 128), (128, 128), (64, 128), (128, 64), (64, 64))
_SPLITS = (1, 2, 4, 8)  # of K, where tiles are few
# Bytes of K, of both factors' rows, that filling and draining takes: four stages of 128 bytes (assumed; it makes fp8
# lose at K of 1024 about what torchao's pull request 2185 measured on H100).
_FILL = 512


def products(op: Op, inputs: Sequence[Tensor]) -> tuple[Product, ...]:
    """The products of the forward pass; () where the op's FLOPs are none."""
    flops = ops.flops(op, inputs)
    if not flops:
        return ()
    hints = {operand.argument: tensor.hint for operand, tensor in zip(op.operands, inputs, strict=False)}
    if op.op == "linear" and len(hints.get("weight", ())) == 2:
        n, k = hints["weight"]
        return (Product(_rest(hints["input"], k), n, k, 1, "linear"),)
    if op.kind == "conv" and "weight" in hints and op.outputs:
        return (_convolution(op, inputs, flops),)
    if op.op == "scaled_dot_product_attention" and {"query", "key", "value"} <= hints.keys():
        return _attention(hints["query"], hints["key"], hints["value"])
    return (_any(op, inputs, flops),)


def gradients(product: Product) -> tuple[Product, Product]:
    """The products of the gradients of the left and of the right factor."""
    m, n, k, batch, layout = product
    if layout in ("conv", "conv_last", "attention"):  # kernels of their own
        return Product(m, k, n, batch, layout), Product(n, k, m, batch, layout)
    return Product(m, k, n, batch, "matmul" if layout == "linear" else "linear"), Product(n, k, m, batch, "outer")


def share_of_peak(product: Product, element_bytes: float, hardware: Hardware) -> float:
    """What part of its peak a device reaches; 1 on a CPU, whose peaks are measured ones."""
    if hardware.kernels == "cpu":
        return 1.0
    processors = hardware.processors or MULTIPROCESSORS.get(hardware.name, 0)
    return ACHIEVED * _quantised(product.m, product.n, product.k, product.batch, element_bytes, processors)


def bandwidth_of(hardware: Hardware) -> float:
    """Byte/s that large kernels reach."""
    return hardware.bandwidth * (1.0 if hardware.kernels == "cpu" else ACHIEVED_BANDWIDTH)


@lru_cache(maxsize=8192)
def _quantised(m: int, n: int, k: int, batch: int, element_bytes: float, processors: int) -> float:
    best = 0.0
    for rows, columns in _TILES:
        high, wide = ceil(m / rows), ceil(n / columns)
        filled = m * n / (high * rows * wide * columns)
        reuse = rows * columns / (rows + columns) / (128 * 256 / (128 + 256))
        for split in _SPLITS if processors else (1,):
            tiles = high * wide * batch * split
            full = tiles / (ceil(tiles / processors) * processors) if processors else 1.0
            depth = k / split * element_bytes
            best = max(best, filled * full * sqrt(reuse) * depth / (depth + _FILL))
    return best


def _rest(shape: Sequence[int], last: int) -> int:
    return max(1, prod(shape) // max(1, last))


def _convolution(op: Op, inputs: Sequence[Tensor], flops: int) -> Product:
    """Positions by out-channels of a group, over in-channels of a group times the kernel."""
    weight = next(t for o, t in zip(op.operands, inputs, strict=False) if o.argument == "weight")
    groups = dict(op.attributes).get("groups", 1)
    groups = groups if isinstance(groups, int) and groups > 0 else 1
    k = max(1, prod(weight.hint[1:]))
    n = max(1, weight.hint[0] // groups)
    layout: Layout = "conv_last" if inputs[0].channels_last or weight.channels_last else "conv"
    return Product(max(1, flops // (2 * n * k * groups)), n, k, groups, layout)


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> tuple[Product, ...]:
    heads, length, keys = prod(query[:-2]), query[-2], key[-2]
    return (
        Product(length, keys, query[-1], heads, "attention"),
        Product(length, value[-1], keys, heads, "attention"),
    )


def _any(op: Op, inputs: Sequence[Tensor], flops: int) -> Product:
    """Any other product, from its FLOPs and its depth; rows and columns from the result where they fit."""
    k = max(1, ops.reduction_depth(op, inputs) or 1)
    outputs = max(1, flops // (2 * k))
    shape = op.outputs[0].hint if op.outputs else ()
    if op.kind == "matmul" and len(shape) >= 2 and prod(shape) == outputs:
        transposed = op.op in ("addmm", "mm") and _reads_transposed(op)
        return Product(shape[-2], shape[-1], k, prod(shape[:-2]), "linear" if transposed else "matmul")
    side = max(1, round(sqrt(outputs)))
    return Product(max(1, outputs // side), side, k)


def _reads_transposed(op: Op) -> bool:
    return any("/t#" in operand.value for operand in op.operands[-1:])
