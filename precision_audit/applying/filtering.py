"""The plan's swaps as a filter for torchao's own `convert_to_float8_training`.

Takes a plan; gives a function of (module, name) that is true for exactly the linears that the plan swaps. torchao's
walk takes everything that is an `nn.Linear`: subclasses, linears with hooks (which it drops), attention's `out_proj`
that no one calls. None of them is in a plan, and a model that has changed since is refused here.

What a filter cannot do: torchao looks at one name of a module that has two under the same parent, and leaves the other
an `nn.Linear`. `apply` swaps such a module under all its names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from precision_audit.applying.fitting import WRAPPERS
from precision_audit.applying.given import Given, plan_of
from precision_audit.backends._linear import PLAIN
from precision_audit.records import InputError, Plan, Swap

if TYPE_CHECKING:
    from torch import nn


def module_filter_fn(plan: Given, recipe: str = "") -> Callable[[nn.Module, str], bool]:
    """A `module_filter_fn` for `torchao.float8.convert_to_float8_training` that converts the plan's swaps and no other.

        convert_to_float8_training(
            model,
            config=Float8LinearConfig.from_recipe_name("rowwise"),
            module_filter_fn=pa.module_filter_fn(result, recipe="rowwise"),
        )

    `plan`: a Plan, Report, Conversion or plan file. torchao applies one recipe in a call: where a plan has several,
    name one and call once for each. Raises InputError for a plan of another backend or an unclear recipe; the filter
    raises it for a linear of another size than planned.
    """
    swaps = _of_recipe(plan_of(plan), recipe)
    accepted: list[nn.Module] = []  # held, so that their identity stays theirs

    def chosen(module: nn.Module, name: str) -> bool:
        if any(module is each for each in accepted):
            return True  # the same module under another parent: the plan swaps it, whatever its name
        swap = swaps.get(name) or swaps.get(_bare(name))
        if swap is None or not _as_planned(module, swap):
            return False
        accepted.append(module)
        return True

    return chosen


def _of_recipe(plan: Plan, recipe: str) -> dict[str, Swap]:
    foreign = sorted({swap.backend for swap in plan.swaps} - {"torchao"})
    if foreign:
        raise InputError(f"the plan swaps by backend {foreign[0]}, which torchao's conversion knows nothing of")
    counts: dict[str, int] = {}
    for module, name in sorted({(swap.module, swap.recipe) for swap in plan.swaps}):
        counts[name] = counts.get(name, 0) + bool(module)
    listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
    if recipe and recipe not in counts:
        raise InputError(f"the plan has no swap of recipe {recipe!r}; it has {listed or 'no swaps'}")
    if not recipe and len(counts) > 1:
        raise InputError(f"the plan has several recipes, {listed}: give recipe= and convert once for each")
    return {swap.module: swap for swap in plan.swaps if not recipe or swap.recipe == recipe}


def _as_planned(module: nn.Module, swap: Swap) -> bool:
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    if kind.startswith("torchao.float8."):
        return False  # swapped already, by a call for another recipe
    if kind != PLAIN:
        warnings.warn(f"{swap.module} is {kind}, not the nn.Linear that the plan swaps: left as it is", stacklevel=2)
        return False
    sizes: tuple[object, object] = (module.in_features, module.out_features)
    if sizes != (swap.k, swap.n):
        raise InputError(
            f"{swap.module} is {sizes[0]} -> {sizes[1]}, the plan swaps {swap.k} -> {swap.n}: make the plan again"
        )
    if any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)):
        warnings.warn(f"{swap.module} has hooks, which torchao would drop: left as it is", stacklevel=2)
        return False
    return True


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
