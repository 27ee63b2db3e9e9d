"""Swap a linear for torchao's `Float8Linear`.

Takes an op and the graph's records and offers a `Swap`, or refuses naming what stands against it; builds the module
around the *same* Parameter objects, so that the optimizer, ties and the state dict stay as they were.

Sizes, y[M, N] = x[M, K] · W[N, K] transposed, as CUDA's `_scaled_mm` enforces them (the CPU enforces none of it):
K and N must be multiples of 16 in every pass. M must be one in backward, where it becomes the inner size of the
gradient of the weight, except under `rowwise_with_gw_hp`, which computes that gradient in high precision. No recipe
but that one can train on an empty batch: a maximum of nothing has no value; `tensorwise` cannot even run forward.

Formats: the output has the format of the input, whatever the weight's: fp32 master weights under a bf16 input are the
intended use. `rowwise*` produce every result in bf16 and cast it up where the input is fp32 or fp16. Note that values
beyond fp8's range, infinities included, saturate instead of spreading.

Emulation: away from a GPU that has fp8 the same casts are followed by an ordinary product (`emulate=True`). It is a
property of the module's device, not of the plan: call `match_device` after moving a model.

Must never swap by torchao's own walk over modules: that loses hooks and subclasses silently, and finds nothing in an
FX graph.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from precision_audit import recipes
from precision_audit.backends._linear import Linear, describe
from precision_audit.backends._torchao import check_plain, quietly
from precision_audit.divisible import divisible, symbols
from precision_audit.records import Graph, Hardware, Mode, Op, Refusal, Swap

if TYPE_CHECKING:
    import torch
    from torch import nn

NAME = "torchao"
RECIPES = recipes.of_backend(NAME)
KIND = "Float8Linear"

_FP8_CAPABILITY = (8, 9)  # Ada; below it _scaled_mm raises


def offer(op: Op, graph: Graph, recipe: str, mode: Mode, hardware: Hardware) -> Swap | Refusal:
    """A `Swap` with the conditions that symbolic sizes must meet, or a `Refusal` naming dimension and value."""
    assert recipe in RECIPES, f"recipe {recipe!r} was validated with the policy"
    linear = describe(op, graph)
    if isinstance(linear, str):
        return Refusal(op.key, op.module, NAME, linear)
    problems, constraints = _sizes(linear, recipe, mode)
    if problems:
        return Refusal(op.key, op.module, NAME, "; ".join(problems))
    notes = linear.notes
    if linear.frozen and mode == "training":  # nn.Linear computes only the gradients that are asked for
        notes = (*notes, "the weight is frozen, yet backward computes its gradient too")
    return Swap(op.key, op.module, NAME, recipe, linear.k, linear.n, linear.m, tuple(constraints), notes)


def build(linear: nn.Linear, swap: Swap) -> nn.Module:
    """`Float8Linear` over the linear's own parameters, in its training mode and with its bias.

    Emulated where the parameters are on the CPU, or on a GPU that has no fp8.
    """
    check_plain(linear, swap)
    with quietly():
        from torchao.float8 import Float8LinearConfig
        from torchao.float8.float8_linear import Float8Linear

        _patch_inductor()
    config = Float8LinearConfig.from_recipe_name(swap.recipe)
    config = dataclasses.replace(config, emulate=_emulated(linear.weight.device))
    built: nn.Module = Float8Linear.from_float(linear, config)
    built.register_forward_pre_hook(_contiguous)
    return built.train(linear.training)


def match_device(module: nn.Module) -> int:
    """Let every Float8Linear of `module` compute as its device does: real fp8 products on a GPU that has them and on
    `meta`, emulated ones elsewhere. Call it after `.to(device)`; returns how many it changed."""
    changed = 0
    swapped: list[Any] = [child for child in module.modules() if is_swapped(child)]
    for child in swapped:
        config = dataclasses.replace(child.config, emulate=_emulated(child.weight.device))
        if config != child.config:
            fresh = type(child).from_float(child, config)
            child.config, child.linear_mm_config = fresh.config, fresh.linear_mm_config
            changed += 1
    return changed


def is_swapped(module: nn.Module) -> bool:
    """Whether `module` is a Float8Linear (told by its class, without importing torchao)."""
    return any(base.__module__ == "torchao.float8.float8_linear" for base in type(module).__mro__)


def _sizes(linear: Linear, recipe: str, mode: Mode) -> tuple[list[str], list[str]]:
    """What makes the linear impossible, and what symbolic sizes must keep to."""
    problems: list[str] = []
    constraints: list[str] = []
    row = recipes.recipe(NAME, recipe)
    k, n, m = row.multiple_training if mode == "training" else row.multiple
    inner = mode == "training" and row.products[2]
    for name, size, multiple in (("K", linear.k, k), ("N", linear.n, n)):
        found = divisible(size, multiple)
        if found.verdict == "never":
            problems.append(f"{name}={size} is not a multiple of {multiple}")
        elif found.condition:
            constraints.append(found.condition)
    if inner:
        found = divisible(linear.m, m)
        if found.verdict == "never":
            cure = "; rowwise_with_gw_hp does without" if not problems else ""
            problems.append(f"M={linear.m} is not a multiple of {m}, as backward needs{cure}")
        elif found.condition:
            breaks = f" (the example's M={linear.m_example} breaks it)" if linear.m_example % m else ""
            constraints.append(f"{found.condition} in backward, last batch included{breaks}")
    _empty(linear, recipe, inner, problems, constraints)
    return problems, constraints


def _empty(linear: Linear, recipe: str, inner: bool, problems: list[str], constraints: list[str]) -> None:
    """A batch of no rows has no maximum to scale by: forward of tensorwise, backward of both plain recipes."""
    if not inner and recipe != "tensorwise":
        return
    if linear.m == 0:
        problems.append("M=0: an empty batch has no maximum to scale by; rowwise_with_gw_hp takes one")
    elif set(symbols(linear.m)) - linear.known:
        constraints.append(f"{linear.m} > 0, no empty batch: it has no maximum to scale by")


def _contiguous(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Copy a transposed input: flattening its leading dimensions copies anyway, and a row-scaled fp8 tensor cannot be
    copied ("aten.clone.default with axiswise scaling is not supported", torchao 0.18)."""
    return (inputs[0].contiguous(),)


def _emulated(device: torch.device) -> bool:
    import torch

    if device.type == "meta":
        return False
    if device.type != "cuda":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY


def _patch_inductor() -> None:
    """torchao's own mend for wrong NaNs in compiled fp8 backward (triton-lang/triton#11111). Its walk over modules
    applies it, building a single module does not. Versions without the file have nothing to mend."""
    try:
        from torchao.float8 import _inductor_patch
    except ImportError:
        return
    _inductor_patch._patch_inductor_min_max_codegen()
