"""What a linear costs whose products are quantised: its products, and what quantising their operands adds.

Takes a linear, its input tensors, the recipe's row, the low format it stands in, a device and a mode; gives seconds.
Which products are quantised and how wide their elements are is the row's to say. Compiled kernels are assumed, as every
library of these recipes asks for: scaling and casting are fused where one kernel can do both. Never decides whether a
swap is worth it.

What each kernel reads and writes, by how the scale is found (torchao/testing/training/roofline_utils.py, 0.18.0):
  of the whole tensor  a pass that reads it for its largest magnitude, then one that reads it again and writes it, in
                       both orders where two products use it; a weight's second order is a pass of its own
  delayed              yesterday's scale: the second pass alone (TransformerEngine's DelayedScaling)
  of a row             one pass; for the other order the tensor is transposed in the low format first. Without fast
                       accumulation the kernel has no row scales (both backward products), and the result is read,
                       scaled and written once more (torchao/float8/float8_ops.py)
  of a block           one pass for each order (TransformerEngine's kernels write both in one)
Weights that are stored quantised cost no pass and fewer bytes; where activations stay as they are the product runs at
the low format's peak, the weight widened within its kernel, as torch.compile (max-autotune) makes it. Uncompiled it is
written and read once more in the low format: PA417 prices that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from precision_audit.cost.products import Product, bandwidth_of, gradients, products
from precision_audit.cost.roofline import product_seconds
from precision_audit.formats import FORMATS, bytes_of
from precision_audit.recipes import Recipe
from precision_audit.records import Hardware, Mode, Op, Tensor

# Share of the bandwidth that compiled scaling and casting kernels reach: 2.2 TB/s is what torchao's authors saw of
# their pointwise kernels on an H100 (roofline_utils.py), over the 3.35 TB/s of its datasheet. Theirs was a card of less
# bandwidth; but these kernels write a transposed copy as well. Speed-ups of tensorwise, measured by torchao (pull
# request 2185, README of 2024) and predicted, for M, K, N: 1.11 and 1.16 for 16384, 8192, 1280; 1.73 and 1.59 for
# 16384, 8192, 7168; 1.71 and 1.47 for 16384, 3584, 8192; 1.43 and 1.08 for 16384, 1024, 8192; 1.39 and 1.45 for 4096,
# 8192, 16384; 0.80 and 0.54 for 1024, 2048, 1024.
_ACHIEVED = 0.66
_DELAYED = "DelayedScaling"


class _Operand(NamedTuple):
    """`uses`: by how many quantised products it is read."""

    elements: int
    uses: int
    weight: bool = False


def seconds(op: Op, inputs: Sequence[Tensor], recipe: Recipe, low: str, hardware: Hardware, mode: Mode) -> float:
    """Seconds of one linear under a recipe, forward and, in training, backward."""
    (forward, *_) = products(op, inputs) or (Product(1, 1, 1),)
    runs = [forward] if mode == "inference" else [forward, *gradients(forward)]
    narrow = bytes_of(recipe.scheme) if recipe.scheme in FORMATS else 1.0
    multiplying = sum(
        hardware.launch + _product(run, number, recipe, low, narrow, hardware) for number, run in enumerate(runs)
    )
    bias = sum(each.hint[0] for each in inputs[2:] if each.hint) * bytes_of(low) / bandwidth_of(hardware)
    kernels = [
        moved
        for operand in _operands(forward, recipe, mode)
        for moved in _passes(operand, recipe, bytes_of(low), narrow)
    ]
    if recipe.scheme == "fp8_rowwise" and recipe.backend == "torchao" and recipe.gradient:
        kernels += [2 * each.batch * each.m * each.n * bytes_of(low) for each in _rescaled(runs, recipe)]
    pace = _ACHIEVED * hardware.bandwidth
    quantising = sum(hardware.launch + moved / pace for moved in kernels)
    return multiplying + bias + quantising


def saved_by_norm(op: Op, inputs: Sequence[Tensor], recipe: Recipe, low: str, hardware: Hardware) -> float:
    """Seconds that a norm saves which is one module with the linear that reads it. Under a scale that is known before
    (delayed) its kernel writes the quantised output: neither is the output written in the low format nor read again,
    and one launch is less. Where the scale is found of the whole tensor its kernel finds the largest magnitude: one
    read and both stages of the search are less. Blocks are quantised by a kernel of their own, and nothing is saved
    (TransformerEngine 2.20, pytorch/csrc/extensions/normalization.cpp). Forward only; backward saves nothing."""
    if recipe.backend != "transformer_engine" or recipe.scheme != "fp8_tensorwise":
        return 0.0
    (forward, *_) = products(op, inputs) or (Product(1, 1, 1),)
    once = forward.batch * forward.m * forward.k * bytes_of(low)
    read = once / (_ACHIEVED * hardware.bandwidth)
    if recipe.name == _DELAYED:
        return once / bandwidth_of(hardware) + read + hardware.launch
    return read + 2 * hardware.launch


def weight_bytes(op: Op, inputs: Sequence[Tensor], recipe: Recipe) -> int:
    """Bytes of a weight that is stored quantised, scales included."""
    (forward, *_) = products(op, inputs) or (Product(1, 1, 1),)
    return int(forward.batch * forward.n * forward.k * bytes_of(recipe.scheme))


def _product(run: Product, number: int, recipe: Recipe, low: str, narrow: float, hardware: Hardware) -> float:
    """One of the three products; a gradient's result is in the low format, too."""
    m, n, k, batch, _ = run
    wide, result = bytes_of(low), batch * m * n * bytes_of(low)
    if not recipe.products[number]:
        return product_seconds(run, result + batch * (m * k + k * n) * wide, low, hardware)
    if not recipe.activations:  # the weight is widened on its way to the unit
        return product_seconds(run, result + batch * (m * k * wide + k * n * narrow), low, hardware)
    moved = result + batch * (m * k + k * n) * narrow
    return product_seconds(run, moved, recipe.peak or low, hardware, stored=narrow)


def _operands(forward: Product, recipe: Recipe, mode: Mode) -> list[_Operand]:
    """What is quantised on the fly: input, weight, gradient of the result."""
    if not recipe.activations:
        return []
    m, n, k, batch, _ = forward
    first, second, third = recipe.products if mode == "training" else (recipe.products[0], False, False)
    found = [
        _Operand(batch * m * k, first + third),
        _Operand(0 if recipe.stored else batch * n * k, first + second, weight=True),
        _Operand(batch * m * n, second + third),
    ]
    return [each for each in found if each.elements and each.uses]


def _passes(operand: _Operand, recipe: Recipe, wide: float, narrow: float) -> list[float]:
    """Bytes that each kernel of quantising one operand moves."""
    elements, uses, weight = operand
    read, written = elements * wide, elements * narrow
    if recipe.scheme in ("fp8_tensorwise", "int8"):
        finding = [] if recipe.name == _DELAYED else [read, 0.0]  # the second stage reduces what the first one left
        if weight and recipe.backend != "transformer_engine":
            return [*finding, *[read + written] * uses]
        return [*finding, read + uses * written]
    if recipe.backend == "transformer_engine":
        return [read + uses * written]
    if recipe.scheme == "fp8_rowwise" and uses == 2:
        if not recipe.products[2]:  # the weight's other order takes one scale, the largest of the rows'
            return [read + written, 0.0, read + written]
        return [read + written, 2 * read, read + written] if weight else [2 * read + written, read + written]
    return [read + written] * uses


def _rescaled(runs: Sequence[Product], recipe: Recipe) -> list[Product]:
    """Backward products that are quantised by row on both sides."""
    pairs = zip(runs[1:], recipe.products[1:], strict=False)
    return [run for run, quantised in pairs if quantised and recipe.products[2]]
