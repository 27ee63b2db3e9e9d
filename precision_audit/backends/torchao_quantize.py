"""Quantise a linear for inference as torchao's `quantize_` does.

Takes an op and the graph's records and offers a `Swap`, or refuses naming what stands against it; builds a
`QuantisedLinear` (`_quantised_linear.py`), whose weight is torchao's own quantised tensor wherever the recipe can run,
and elsewhere the very Parameter of the linear, with torchao's own quantisers around an ordinary product. Recipes carry
the names that torchao's benchmarks take on their command lines.

What `quantize_` itself does not say, found by running it (0.18):
- float8dq leaves a layer as it is, silently, when K or N is no multiple of 16: here a refusal, and `build` makes sure
  that the weight did become another tensor.
- float8dq-row and the mx recipes want bf16 weights. So the module computes in bf16, whatever format comes in, and hands
  the result over in that format.
- float8dq has no lower bound under its scales: a row of zeros (padding, a pruned output) is divided by zero and comes
  out NaN. Inputs and weights get one here, `activation_value_lb` by torchao's name.
- nvfp4 converts a weight with K = 16 or 48 and fails in forward: two values share a byte, and the kernel wants sixteen
  bytes. So K must be a multiple of 32.
- A weight of one column has an axis of size 1, which torchao's search for scales reduces too: it raises.
- int8dq fails on an input of no rows: the module answers with no rows itself, whatever the recipe.
- int8dq multiplies on the CPU, silently, where cuBLAS cannot take the sizes: K and N must be multiples of 8.
- The configurations change inductor's settings and fp32 matmul precision of the whole process unless told not to; they
  are told not to.

Must never run in training: what is stored has no gradient. The policy loader sees to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from precision_audit import recipes
from precision_audit.backends._linear import Linear, describe
from precision_audit.backends._torchao import check_plain
from precision_audit.divisible import divisible
from precision_audit.records import Graph, Hardware, Mode, Op, Refusal, Swap

if TYPE_CHECKING:
    from torch import nn

NAME = "torchao_quantize"
RECIPES = recipes.of_backend(NAME)

# The class of a weight so quantised, as torchao calls it.
KINDS = {
    "fp8_rowwise": "Float8Tensor",
    "fp8_tensorwise": "Float8Tensor",
    "int8": "Int8Tensor",
    "mxfp8_e4m3": "MXTensor",
    "mxfp4": "MXTensor",
    "nvfp4": "NVFP4Tensor",
}


def offer(op: Op, graph: Graph, recipe: str, mode: Mode, hardware: Hardware) -> Swap | Refusal:
    """A `Swap` with the conditions that symbolic sizes must meet, or a `Refusal` naming dimension and value."""
    assert recipe in RECIPES, f"recipe {recipe!r} was validated with the policy"
    row = recipes.recipe(NAME, recipe)
    if mode not in row.modes:
        return Refusal(op.key, op.module, NAME, f"{recipe} quantises for inference, and this is {mode}")
    linear = describe(op, graph, trained=False)
    if isinstance(linear, str):
        return Refusal(op.key, op.module, NAME, linear)
    problems, constraints = _sizes(linear, row)
    if problems:
        return Refusal(op.key, op.module, NAME, "; ".join(problems))
    kind = KINDS[row.scheme]
    return Swap(
        op.key, op.module, NAME, recipe, linear.k, linear.n, linear.m, tuple(constraints), _notes(linear), kind=kind
    )


def build(linear: nn.Linear, swap: Swap) -> nn.Module:
    """The module over the linear's weight and bias: quantised where its device can run the recipe, else emulated."""
    check_plain(linear, swap)
    from precision_audit.backends._quantised_linear import QuantisedLinear

    return QuantisedLinear(linear.weight, linear.bias, swap.recipe).train(linear.training)


def runs_on_cpu(recipe: str) -> bool:
    """Whether torchao itself computes the recipe on a CPU: int8, and weights that are only stored in fp8."""
    row = recipes.recipe(NAME, recipe)
    return not row.activations or row.scheme == "int8"


def match_device(module: nn.Module) -> int:
    """Quantise the weights of every emulated linear of `module` whose device can run the recipe. Call it after
    `.to(device)`; returns how many it changed."""
    from precision_audit.backends._quantised_linear import QuantisedLinear

    return sum(child.quantise() for child in module.modules() if isinstance(child, QuantisedLinear))


def _sizes(linear: Linear, row: recipes.Recipe) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    constraints: list[str] = []
    for name, size, multiple in zip("KNM", (linear.k, linear.n, linear.m), row.multiple, strict=True):
        found = divisible(size, multiple)
        if found.verdict == "never":
            problems.append(f"{name}={size} is not a multiple of {multiple}")
        elif found.condition:
            constraints.append(found.condition)
    if linear.k == 1:
        problems.append("K=1: torchao takes the scales of a weight of one column for a single one")
    return problems, constraints


def _notes(linear: Linear) -> tuple[str, ...]:
    """A tied weight is quantised for this reader alone."""
    apart = "it stays one parameter"
    return tuple(note.replace(apart, "quantised here alone, so stored twice") for note in linear.notes)
