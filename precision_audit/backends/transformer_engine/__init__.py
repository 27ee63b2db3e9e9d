"""Swap linears for TransformerEngine's modules: `te.Linear`, `te.LayerNormLinear`, `te.LayerNormMLP`.

Takes an op and the graph's records; offers a `Swap` for `te.Linear`, or refuses naming what stands against it, and
then (`fusions`) the larger modules that could take the place of a norm and an MLP around it. All of that reads records
only: a plan made on a laptop tells what a GPU would run. What makes modules is in `modules.py` (CUDA and the library
are needed), what stands in for them away from a GPU in `emulated.py`, and `code.py` writes a file that performs a plan
on the user's own model. The library's own probes raise without a driver, and its constructors raise without CUDA even
for `device="meta"`: CUDA is asked first, and the package is only looked for.

Sizes, y[M, N] = x[M, K] · W[N, K] transposed, by recipe (TransformerEngine 2.20). Hopper's fp8 recipes check M % 8,
N % 8 and K % 16 in Python; their GEMMs want 16 for every leading dimension, which backward makes of M and N too, so
that a step with M % 16 == 8 passes forward and fails in backward. Scales per block want whole blocks.

Numbers: input, weight and incoming gradient are quantised in all three products of a linear; the output has the format
of the input. A norm inside a module is computed in fp32 from an input in the low format.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from precision_audit import recipes
from precision_audit.backends._linear import Linear, describe
from precision_audit.backends.transformer_engine import patterns
from precision_audit.backends.transformer_engine.options import OPTIONS, problem
from precision_audit.divisible import divisible
from precision_audit.records import Graph, Hardware, InputError, Mode, Op, Plan, Refusal, Swap

if TYPE_CHECKING:
    from torch import nn

NAME = "transformer_engine"

RECIPES = recipes.of_backend(NAME)

KIND = "te.Linear"

__all__ = ["KIND", "NAME", "OPTIONS", "RECIPES", "around", "build", "fuse", "fusions", "lacking", "offer",
           "option_problem", "stand_in", "unseen"]  # fmt: skip

option_problem = problem

# Extra `te`: the Python package and its compiled torch binding. The first alone cannot be imported.
_PACKAGES = ("transformer_engine", "transformer_engine_torch")

# What one step on a CPU cannot show of a recipe.
_UNSEEN: Mapping[str, str] = {
    "DelayedScaling": "its scales come from the maxima of earlier steps, and are 1 in the first",
    "NVFP4BlockScaling": "random Hadamard transforms, stochastic rounding and 16 x 16 blocks of weights are left out",
}


def offer(op: Op, graph: Graph, recipe: str, mode: Mode, hardware: Hardware) -> Swap | Refusal:
    """A `Swap` for `te.Linear` with the conditions that symbolic sizes must meet, or a `Refusal`."""
    assert recipe in RECIPES, f"recipe {recipe!r} was validated with the policy"
    linear = describe(op, graph)
    if isinstance(linear, str):
        return Refusal(op.key, op.module, NAME, linear)
    problems, constraints = _sizes(linear, recipe, mode)
    if problems:
        return Refusal(op.key, op.module, NAME, "; ".join(problems))
    notes = [*linear.notes, *patterns.why_alone(op, graph)]
    sizes = (linear.k, linear.n, linear.m)
    biased = any(operand.argument == "bias" for operand in op.operands)
    given = (("bias", biased),)
    return Swap(op.key, op.module, NAME, recipe, *sizes, tuple(constraints), tuple(notes), kind=KIND, options=given)


def fusions(swap: Swap, graph: Graph, others: Mapping[str, Swap], fuse: str) -> Iterator[Swap]:
    """The larger modules that could take the place of `swap`'s linear and the ops around it, the largest first.
    `others` are the swaps of all linears, by op: an MLP needs its second linear swapped by the same recipe too. `fuse`
    is what the policy allows."""
    if fuse == "none":
        return
    norm = patterns.norm_before(swap.op, graph)
    if norm is None:
        return
    mlp = patterns.mlp_after(swap.op, graph) if fuse == "mlp" else None
    if mlp is not None:
        second = others.get(mlp.second)
        alike = second is not None and (second.recipe, second.recipe_options) == (swap.recipe, swap.recipe_options)
        if second is not None and alike:
            yield _merged(patterns.layer_norm_mlp(swap, norm, mlp), second)
    yield patterns.layer_norm_linear(swap, norm)


def _merged(fused: Swap, second: Swap) -> Swap:
    """With what the second linear asks of the user."""
    more = [text for text in second.constraints if text not in fused.constraints]
    notes = [note for note in second.notes if note not in fused.notes]
    return replace(fused, constraints=(*fused.constraints, *more), notes=(*fused.notes, *notes))


def lacking() -> str:
    """Why its modules cannot be made on this machine, or ""."""
    if any(importlib.util.find_spec(package) is None for package in _PACKAGES):
        return "TransformerEngine is not installed: pip install 'precision-audit[te]' on a machine with CUDA"
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device here, and te.Linear cannot be constructed without one"
    return ""


def build(linear: nn.Linear, swap: Swap) -> nn.Module:
    """`te.Linear` over the linear's own parameters, in its training mode; InputError where it cannot be made."""
    return _made(dict(linear.named_parameters()), swap, linear.training)


def fuse(parameters: Mapping[str, nn.Parameter], swap: Swap, training: bool) -> nn.Module:
    """The module of a fused swap over the model's own parameters, by the names that the module has for them. They
    stay registered where the model has them; here they are known, not owned."""
    return _made(parameters, swap, training)


def _made(parameters: Mapping[str, nn.Parameter], swap: Swap, training: bool) -> nn.Module:
    missing = lacking()
    if missing:
        raise InputError(f"{swap.module} cannot be swapped for {swap.kind}: {missing}")
    from precision_audit.backends.transformer_engine.modules import made

    return made(parameters, swap, training)


def stand_in(parameters: Mapping[str, nn.Parameter], swap: Swap, training: bool) -> nn.Module:
    """A module of torch's own that computes as the swap's would, with operands quantised by our emulation."""
    from precision_audit.backends.transformer_engine.emulated import Emulated

    return Emulated(parameters, swap).train(training)


def around(run: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """`run` inside one `te.autocast`, where modules of the library are inside it: its exit is what moves the maxima of
    delayed scaling on, once per call of the model."""
    swaps = [swap for swap in plan.swaps if swap.backend == NAME]
    if not swaps or lacking():
        return run
    from precision_audit.backends.transformer_engine.modules import in_autocast

    return in_autocast(run, swaps[0])


def unseen(swap: Swap) -> str:
    """What the emulation leaves out of a swap, or ""."""
    return _UNSEEN.get(swap.recipe, "")


def _sizes(linear: Linear, recipe: str, mode: Mode) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    constraints: list[str] = []
    row = recipes.recipe(NAME, recipe)
    needed: Sequence[int] = row.multiple_training if mode == "training" else row.multiple
    for name, size, multiple, forward in zip("KNM", (linear.k, linear.n, linear.m), needed, row.multiple, strict=True):
        found = divisible(size, multiple)
        only_backward = multiple > forward
        if found.verdict == "never":
            what = ", as backward needs" if only_backward and name == "M" else ""
            problems.append(f"{name}={size} is not a multiple of {multiple}{what}")
        elif found.condition:
            example = linear.m_example if name == "M" else 0
            breaks = f" (the example's M={example} breaks it)" if example % multiple else ""
            when = " in backward, last batch included" if only_backward else ""
            constraints.append(f"{found.condition}{when}{breaks}")
    return problems, constraints
