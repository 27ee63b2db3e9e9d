"""TransformerEngine's own modules over a model's own parameters. Needs CUDA and the library.

Takes a swap and parameters by the library's names; gives a module of the library's class that computes in the swap's
recipe wherever it is called. What must hold, and why it is written so:

    keyword arguments only   the third positional one of te.Linear is not the bias
    built on meta            nothing is allocated or initialised; then the parameters are put in by identity, so that
                             optimizers and ties stay valid. A fused module knows them and does not own them: they stay
                             where the model has them, under their names in its state dict
    te.autocast              outside it a module runs in high precision. Entered around each call, inside torch.autocast
                             of the input's format (the parameters may be fp32 masters)
    probe first              a te.autocast that fails on entry leaves its state switched on
    `_extra_state`           left out on saving and not asked for on loading: the state dict is the model's own.
                             Delayed scaling's history is not saved by that; it fills again within its length
    off CUDA                 the library raises; such a call (verification on a CPU) is computed by `emulated`
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from precision_audit import recipes
from precision_audit.backends.transformer_engine.emulated import emulate
from precision_audit.backends.transformer_engine.options import ENUM_FIELDS
from precision_audit.backends.transformer_engine.patterns import gated
from precision_audit.records import InputError, Swap

_EXTRA = "_extra_state"
_PROBES = {
    "MXFP8BlockScaling": "is_mxfp8_available",
    "NVFP4BlockScaling": "is_nvfp4_available",
    "Float8BlockScaling": "is_fp8_block_scaling_available",
}


def made(parameters: Mapping[str, nn.Parameter], swap: Swap, training: bool) -> nn.Module:
    """The module of `swap`, on the parameters' device and in their format."""
    recipe = recipe_of(swap)
    probe(swap)
    weight = next(value for name, value in parameters.items() if name.endswith("weight"))
    arguments = constructor_arguments(swap)
    built = _class(swap.kind)(**arguments, params_dtype=weight.dtype, device="meta")
    for name, value in parameters.items():
        _put(built, name, value, owned=not swap.covers)
    for name, value in list(vars(built).items()):  # the empty tensor that stands for no bias
        if isinstance(value, Tensor) and value.is_meta:
            object.__setattr__(built, name, torch.empty_like(value, device=weight.device))
    built.swap, built.recipe = swap, recipe
    made_: nn.Module = built.train(training)
    return made_


def constructor_arguments(swap: Swap) -> dict[str, Any]:
    """Keyword arguments of the class, without format and device."""
    options = dict(swap.options)
    if swap.kind != "te.LayerNormMLP":
        return {"in_features": swap.k, "out_features": swap.n, **options}
    halves = 2 if gated(str(options["activation"])) else 1
    return {"hidden_size": swap.k, "ffn_hidden_size": int(swap.n) // halves, **options}


def recipe_of(swap: Swap) -> Any:
    """The library's recipe object; InputError for a field it has not (it would ignore it)."""
    from transformer_engine.common import recipe as library

    kind = getattr(library, swap.recipe)
    given = dict(swap.recipe_options)
    known = {field.name for field in dataclasses.fields(kind)}
    for name in sorted(given.keys() - known):
        raise InputError(f"{swap.recipe} of the installed TransformerEngine has no field {name!r}; leave it out")
    for name in ENUM_FIELDS:
        if name in given:
            given[name] = getattr(library.Format, str(given[name]))
    return kind(**given)


def probe(swap: Swap) -> None:
    """InputError where this device lacks the recipe."""
    import transformer_engine.pytorch as te

    available, reason = getattr(te, _PROBES.get(swap.recipe, "is_fp8_available"))(return_reason=True)
    if not available:
        raise InputError(f"{swap.module} cannot be swapped for {swap.kind} with {swap.recipe} here: {reason}")


def in_autocast(run: Callable[..., Any], swap: Swap) -> Callable[..., Any]:
    """`run` inside one te.autocast; without it each module's own exit would move all histories on."""
    import transformer_engine.pytorch as te

    recipe = recipe_of(swap)

    def inside(module: Any, *flat: Any) -> Any:
        if not any(isinstance(each, Tensor) and each.is_cuda for each in flat):
            return run(module, *flat)
        with te.autocast(enabled=True, recipe=recipe):
            return run(module, *flat)

    return inside


def is_swapped(module: nn.Module) -> bool:
    """Whether `module` was made here."""
    return isinstance(module, _Swapped)


class _Swapped:
    """Beside a class of the library: its recipe around every call, and the model's own state dict."""

    swap: Swap
    recipe: Any

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not x.is_cuda:
            return emulate(self, x, self.swap, recipes.recipe(self.swap.backend, self.swap.recipe).scheme)
        import transformer_engine.pytorch as te

        half = x.dtype in (torch.bfloat16, torch.float16)
        with (
            torch.autocast("cuda", dtype=x.dtype) if half else contextlib.nullcontext(),
            te.autocast(enabled=True, recipe=self.recipe),
        ):
            return super().forward(x, *args, **kwargs)  # type: ignore[misc]

    def _load_from_state_dict(
        self, state: dict[str, Any], prefix: str, local: Any, strict: bool, missing: list[str], *rest: Any
    ) -> None:
        state.pop(prefix + _EXTRA, None)
        super()._load_from_state_dict(state, prefix, local, strict, missing, *rest)  # type: ignore[misc]
        if prefix + _EXTRA in missing:
            missing.remove(prefix + _EXTRA)


def _without_extra_state(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    state.pop(prefix + _EXTRA, None)


@cache
def _class(kind: str) -> Callable[..., Any]:
    """The library's class with `_Swapped` before it; its modules leave `_extra_state` out."""
    import transformer_engine.pytorch as te

    name = kind.removeprefix("te.")
    library = getattr(te, name)
    found = type(name, (_Swapped, library), {"__module__": __name__})

    def build(**arguments: Any) -> Any:
        made_ = found(**arguments)
        made_.register_state_dict_post_hook(_without_extra_state)
        return made_

    return build


def _put(module: nn.Module, name: str, value: nn.Parameter, owned: bool) -> None:
    module._parameters.pop(name, None)
    if owned:
        module.register_parameter(name, value)
    else:
        object.__setattr__(module, name, value)
