"""Where TransformerEngine's `te.Linear` would take a linear's place, and why it does not yet.

Takes an op and the graph's records; always gives a `Refusal`: either what stands against the linear itself (its sizes,
its weight), or that TransformerEngine would be chosen and what this machine lacks. A plan made on a laptop so tells
what a GPU would run. Nothing of the library is imported: its own probes raise without a driver, and its constructors
raise without CUDA even for `device="meta"`, so CUDA is asked first and the package is only looked for.

Sizes, y[M, N] = x[M, K] · W[N, K] transposed, by recipe (TransformerEngine 2.20). Hopper's fp8 recipes check M % 8,
N % 8 and K % 16 in Python; their GEMMs want 16 for every leading dimension, which backward makes of M and N too, so
that a step with M % 16 == 8 passes forward and fails in backward. Scales per block want whole blocks.

What a later `build` has to heed: keyword arguments only (the third positional one is not the bias), `params_dtype` of
the source, the Parameters themselves carried over from a meta construction, and the extra state-dict key
`_extra_state`, which strict loading rejects both ways.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from precision_audit import recipes
from precision_audit.backends._linear import Linear, describe
from precision_audit.divisible import divisible
from precision_audit.records import Graph, Hardware, InputError, Mode, Op, Refusal, Swap

if TYPE_CHECKING:
    from torch import nn

NAME = "transformer_engine"

RECIPES = recipes.of_backend(NAME)

# Extra `te`: the Python package and its compiled torch binding. The first alone cannot be imported.
_PACKAGES = ("transformer_engine", "transformer_engine_torch")


def offer(op: Op, graph: Graph, recipe: str, mode: Mode, hardware: Hardware) -> Swap | Refusal:
    """A `Refusal` that names what stands against the linear, else what is missing here."""
    assert recipe in RECIPES, f"recipe {recipe!r} was validated with the policy"
    linear = describe(op, graph)
    if isinstance(linear, str):
        return Refusal(op.key, op.module, NAME, linear)
    problems, constraints = _sizes(linear, recipe, mode)
    if problems:
        return Refusal(op.key, op.module, NAME, "; ".join(problems))
    under = f" where {' and '.join(constraints)}" if constraints else ""
    return Refusal(op.key, op.module, NAME, f"te.Linear with {recipe} would be chosen{under}, but {_lacking()}")


def build(linear: nn.Linear, swap: Swap) -> nn.Module:
    """Not possible in this version; says what to do instead."""
    raise InputError(f"{swap.module} cannot be swapped for te.Linear: {_lacking()}; use backend torchao")


def _sizes(linear: Linear, recipe: str, mode: Mode) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    constraints: list[str] = []
    row = recipes.recipe(NAME, recipe)
    needed = row.multiple_training if mode == "training" else row.multiple
    for name, size, multiple in zip("KNM", (linear.k, linear.n, linear.m), needed, strict=True):
        found = divisible(size, multiple)
        if found.verdict == "never":
            problems.append(f"{name}={size} is not a multiple of {multiple}")
        elif found.condition:
            constraints.append(found.condition)
    return problems, constraints


def _lacking() -> str:
    if any(importlib.util.find_spec(package) is None for package in _PACKAGES):
        return "TransformerEngine is not installed: pip install 'precision-audit[te]' on a machine with CUDA"
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device here, and te.Linear cannot be constructed without one"
    return "this version plans TransformerEngine and does not build it"
