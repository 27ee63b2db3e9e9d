"""Hooks that cast what goes into a module and what comes out of it.

Plain objects that hold formats and argument names only: they are deep-copied and pickled with the module, and
`torch.compile` traces through them. A float tensor is cast only from one of the plan's two formats to the other; a
container is copied when something in it changed, and left alone otherwise. Objects that are not plain containers (a
KV cache) are never looked into.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class Takes:
    """A forward pre-hook: float inputs are cast to `to`. Masks are saturated, since the lowest fp32 number, by which
    masks hide positions, becomes -inf otherwise, and a row of only -inf turns into NaN."""

    def __init__(self, to: torch.dtype, other: torch.dtype, names: tuple[str, ...]) -> None:
        self.to, self.other, self.names = to, other, names

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        taken = tuple(self._cast(value, self._name(i)) for i, value in enumerate(args))
        named = {name: self._cast(value, name) for name, value in kwargs.items()}
        return taken, named

    def _name(self, index: int) -> str:
        return self.names[index] if index < len(self.names) else ""

    def _cast(self, value: Any, name: str) -> Any:
        mask = "mask" in name or "bias" in name
        return cast_floats(value, self.other, self.to, saturate=mask)


class Gives:
    """A forward hook: float outputs in the format `other` are cast to `to`."""

    def __init__(self, to: torch.dtype, other: torch.dtype) -> None:
        self.to, self.other = to, other

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return cast_floats(output, self.other, self.to)


def cast_floats(value: Any, source: torch.dtype, to: torch.dtype, saturate: bool = False) -> Any:
    """`value` with its tensors of format `source` in format `to`."""
    if isinstance(value, torch.Tensor):
        if value.dtype != source:
            return value
        if saturate:
            limit = torch.finfo(to).max
            value = torch.where(value.isinf(), value, value.clamp(-limit, limit))
        return value.to(to)
    if isinstance(value, tuple):
        items = [cast_floats(item, source, to, saturate) for item in value]
        if _same(items, value):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else _tuple(value, items)
    if isinstance(value, list):
        items = [cast_floats(item, source, to, saturate) for item in value]
        return value if _same(items, value) else type(value)(items)
    if isinstance(value, Mapping):
        return _mapping(value, source, to, saturate)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not isinstance(value, nn.Module):
        return _record(value, source, to, saturate)
    return value


def _tuple(value: tuple[Any, ...], items: list[Any]) -> Any:
    return tuple(items) if type(value) is tuple else type(value)(items)


def _mapping(value: Mapping[Any, Any], source: torch.dtype, to: torch.dtype, saturate: bool) -> Any:
    new = {key: cast_floats(item, source, to, saturate) for key, item in value.items()}
    changed = {key: item for key, item in new.items() if item is not value[key]}
    if not changed:
        return value
    if type(value) is dict:
        return new
    copied: Any = copy.copy(value)  # an output class of its own, such as transformers', with attributes beside the keys
    for key, item in changed.items():
        copied[key] = item
    return copied


def _record(value: Any, source: torch.dtype, to: torch.dtype, saturate: bool) -> Any:
    """A dataclass of which each field is an argument; others (caches) are not rebuilt."""
    if not all(each.init for each in dataclasses.fields(value)):
        return value
    old = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    new = {name: cast_floats(item, source, to, saturate) for name, item in old.items()}
    return value if _same(list(new.values()), list(old.values())) else dataclasses.replace(value, **new)


def _same(new: Any, old: Any) -> bool:
    return all(left is right for left, right in zip(new, old, strict=True))
