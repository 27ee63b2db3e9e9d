"""Swap backends: who can replace a linear by a module that computes in fp8, found by listing this folder.

A backend is one file here, not beginning with an underscore, with

    NAME                             as policies write it (`backend: torchao`)
    RECIPES                          the recipes it knows, by the library's own names: rows of `recipes.RECIPES`
    offer(op, graph, recipe, mode, hardware)
                                     a `Swap`, or a `Refusal` with the reason; reads records only, imports no library
    build(linear, swap)              the module that takes the linear's place, over the very same parameters

Adding a file adds a backend. Importing this package imports none of the libraries behind them.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast

from precision_audit.records import Graph, Hardware, InputError, Mode, Op, Refusal, Swap

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


def _unknown(what: str, name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"unknown {what}: {name!r}; {advice}"
