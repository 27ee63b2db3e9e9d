"""Names at the top of a model that a graph module or a converted one has itself: `graph`, `code`, `plans`.

Takes a model; gives it, or a copy of its top module that holds the same children, parameters and buffers with those
under another name, and which name stands for which. The user's code still reaches them by their own names. Never
changes the model. Whoever makes a module of the capture gives its state dict the user's names back (`restored`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from torch import fx, nn


def respelled(model: nn.Module) -> tuple[nn.Module, dict[str, str]]:
    """The model to capture, and the user's name of each that has another there."""
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    taken = dict.fromkeys(path.partition(".")[0] for path, _ in held)
    names: dict[str, str] = {}
    for name in taken:
        if name in _reserved():
            other = f"{name}_"
            while hasattr(model, other) or other in _reserved():
                other += "_"
            names[other] = name
    return (_renamed(model, names), names) if names else (model, names)


def restored(path: str, names: Mapping[str, str]) -> str:
    """The user's name of a parameter, buffer or module."""
    first, dot, rest = path.partition(".")
    return names.get(first, first) + dot + rest


def _renamed(model: nn.Module, names: Mapping[str, str]) -> nn.Module:
    kind = type(model)
    found = copy.copy(model)
    own = {name: _reached(other) for other, name in names.items()}
    found.__class__ = type(kind.__name__, (kind,), {**own, "__module__": kind.__module__, "__doc__": kind.__doc__})
    found.__class__.__qualname__ = kind.__qualname__
    new = {name: other for other, name in names.items()}
    for table in ("_modules", "_parameters", "_buffers"):
        found.__dict__[table] = {new.get(name, name): value for name, value in vars(model)[table].items()}
    kept: Iterable[str] = model._non_persistent_buffers_set
    found.__dict__["_non_persistent_buffers_set"] = {new.get(name, name) for name in kept}
    return found


def _reached(other: str) -> property:
    """The user's name, for the user's code."""

    def get(module: nn.Module) -> Any:
        return getattr(module, other)

    def put(module: nn.Module, value: Any) -> None:
        setattr(module, other, value)

    return property(get, put)


@cache
def _reserved() -> frozenset[str]:
    from precision_audit.rewrite.converted import Converted  # which is made of captured graphs

    taken = {*dir(fx.GraphModule(nn.Module(), fx.Graph())), *dir(Converted(nn.Module(), {})), "range_constraints"}
    return frozenset(taken - set(dir(nn.Module())) | {"_in_spec", "_out_spec"})
