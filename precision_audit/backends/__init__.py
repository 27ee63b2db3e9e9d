"""Swap backends: who can replace a linear by a module that computes in fp8, found by listing this folder.

A backend is one file here, not beginning with an underscore, with

    NAME                             as policies write it (`backend: torchao`)
    RECIPES                          the recipes it knows, by the library's own names: rows of `recipes.RECIPES`
    offer(op, graph, recipe, mode, hardware)
                                     a `Swap`, or a `Refusal` with the reason; reads records only, imports no library
    build(linear, swap)              the module that takes the linear's place, over the very same parameters

and may have, where its library asks for it:

    OPTIONS                          fields of its recipes that a policy may set (`recipe_options`), by recipe
    option_problem(recipe, name, given)  what is wrong with one of those that are given, and what was expected
    KIND                             the class of its modules, where it is always one
    fusions(swap, graph, others, fuse)   larger modules for the linear and ops around it, the largest first
    lacking()                        why its modules cannot be made on this machine, or ""
    fuse(parameters, swap, training)     the module of a fused swap
    stand_in(parameters, swap, training) what computes in its place where it cannot be made, for an audit
    around(run, plan)                the graph's code inside what the library wants around a forward pass
    unseen(swap)                     what the stand-in leaves out, or ""

Adding a file (or a folder) adds a backend. Importing this package imports none of the libraries behind them.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

from precision_audit.records import Graph, Hardware, InputError, Mode, Op, Plan, Policy, Refusal, Swap

if TYPE_CHECKING:
    from torch import nn


class Backend(Protocol):
    """What a file of this folder has to offer."""

    NAME: str
    RECIPES: tuple[str, ...]

    def offer(self, op: Op, graph: Graph, recipe: str, mode: Mode, hardware: Hardware) -> Swap | Refusal: ...

    def build(self, linear: nn.Linear, swap: Swap) -> nn.Module: ...


@cache
def listed() -> MappingProxyType[str, Backend]:
    """Every backend by name, sorted."""
    found = (
        cast(Backend, importlib.import_module(f"{__name__}.{entry.name}"))
        for entry in pkgutil.iter_modules(__path__)
        if not entry.name.startswith("_")
    )
    return MappingProxyType({entry.NAME: entry for entry in sorted(found, key=lambda entry: entry.NAME)})


def get(name: str, recipe: str | None = None) -> Backend:
    """The backend called `name`; with `recipe`, one that is known to have it."""
    known = listed()
    if name not in known:
        raise InputError(_unknown("backend", name, tuple(known)))
    if recipe is not None and recipe not in known[name].RECIPES:
        raise InputError(_unknown(f"recipe of backend {name}", recipe, known[name].RECIPES))
    return known[name]


def title(name: str) -> str:
    """The class that a backend's swaps are called by, where it has one; else its name."""
    return str(getattr(listed().get(name), "KIND", name))


def options(name: str, recipe: str) -> tuple[str, ...]:
    """The fields of a recipe that a policy may set."""
    return tuple(getattr(get(name), "OPTIONS", {}).get(recipe, ()))


def option_problem(name: str, recipe: str, option: str, given: Mapping[str, object]) -> tuple[str, str]:
    """What is wrong with a field among those given and what was expected, or two empty texts."""
    problem, expected = cast(Any, get(name)).option_problem(recipe, option, given)
    return str(problem), str(expected)


def fusions(swap: Swap, graph: Graph, others: Mapping[str, Swap], fuse: str) -> Iterator[Swap]:
    """Larger modules for a swap, the largest first."""
    found = getattr(get(swap.backend), "fusions", None)
    return iter(()) if found is None else found(swap, graph, others, fuse)


def lacking(name: str) -> str:
    """Why a backend's modules cannot be made on this machine, or ""."""
    asked = getattr(listed().get(name), "lacking", None)
    return str(asked()) if asked is not None else ""


def check_here(names: Iterable[str], what: str) -> None:
    """InputError unless the modules of these backends can be made on this machine; `what` asks for them."""
    for name in sorted(set(names)):
        if missing := lacking(name):
            raise InputError(
                f"{what} swaps linears by backend {name}, whose modules cannot be made here: {missing}; audit the "
                "model here, write the code that performs the plan with --write-code FILE, or use backend torchao"
            )


def check_policy(policy: Policy) -> None:
    """The same of everything that a policy swaps for."""
    asking = [rule.backend for rule in policy.rules if rule.classification == "fp8-eligible"]
    check_here(asking, f"policy {policy.name}")


def module_for(linear: nn.Linear, swap: Swap) -> nn.Module:
    """What takes a linear's place: the backend's module, or its stand-in where that cannot be made."""
    backend = get(swap.backend)
    if not lacking(swap.backend):
        return backend.build(linear, swap)
    return _stand_in(backend, dict(linear.named_parameters()), swap, linear.training)


def fused_module_for(parameters: Mapping[str, nn.Parameter], swap: Swap, training: bool) -> nn.Module:
    """The same for a swap that computes more than a linear; `parameters` go by the module's own names."""
    backend = get(swap.backend)
    if not lacking(swap.backend):
        made: nn.Module = cast(Any, backend).fuse(parameters, swap, training)
        return made
    return _stand_in(backend, parameters, swap, training)


def around(run: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """A graph's code inside what the libraries of its swaps want around it."""
    for name in sorted({swap.backend for swap in plan.swaps}):
        wrap = getattr(get(name), "around", None)
        run = wrap(run, plan) if wrap is not None else run
    return run


def stand_ins(plan: Plan) -> tuple[Swap, ...]:
    """The swaps of a plan that stand-ins compute on this machine."""
    return tuple(swap for swap in plan.swaps if lacking(swap.backend))


def unseen(swap: Swap) -> str:
    """What a swap's stand-in leaves out, or ""."""
    asked = getattr(get(swap.backend), "unseen", None)
    return str(asked(swap)) if asked is not None else ""


def _stand_in(backend: Backend, parameters: Mapping[str, nn.Parameter], swap: Swap, training: bool) -> nn.Module:
    made: nn.Module = cast(Any, backend).stand_in(parameters, swap, training)
    return made


def _unknown(what: str, name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"unknown {what}: {name!r}; {advice}"
