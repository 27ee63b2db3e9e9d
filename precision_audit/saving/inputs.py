"""How a saved conversion remembers the inputs it was captured with: shapes and formats, never values.

Takes the example call of a conversion; gives JSON for the manifest, and from that again tensors of zeros to capture
with and the dimensions that have to stay symbolic. Integers are zeros too, which index any table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from precision_audit.formats import dtype_of, format_of
from precision_audit.records import InputError
from precision_audit.saving.reexport import Dynamic, dynamic_dimensions

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class SavedInputs:
    """`nesting` is pytree's own text, "" where it cannot write the inputs' types; a leaf is a shape and a format, or
    a plain value."""

    nesting: str
    leaves: tuple[dict[str, Any], ...]
    dynamic: tuple[Dynamic, ...]

    @classmethod
    def of_call(cls, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SavedInputs:
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        try:
            nesting = pytree.treespec_dumps(spec)
        except (NotImplementedError, TypeError):
            nesting = ""
        return cls(nesting, tuple(map(_described, leaves)), dynamic_dimensions(module, args, kwargs))

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> SavedInputs:
        return cls(data["nesting"], tuple(data["leaves"]), tuple(Dynamic(**each) for each in data["dynamic"]))

    def to_json(self) -> dict[str, Any]:
        return {
            "nesting": self.nesting,
            "leaves": list(self.leaves),
            "dynamic": [asdict(each) for each in self.dynamic],
        }

    def zeros(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs to capture with."""
        if not self.nesting or any("type" in leaf for leaf in self.leaves):
            raise InputError("the inputs of this conversion cannot be made up: call load(path, model, args, kwargs)")
        made = [_made(leaf) for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(made, pytree.treespec_loads(self.nesting))
        return args, kwargs


def _described(leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, torch.Tensor):
        return {"shape": list(leaf.shape), "format": format_of(leaf.dtype)}
    if isinstance(leaf, _PLAIN):
        return {"value": leaf}
    return {"type": type(leaf).__name__}


def _made(leaf: Mapping[str, Any]) -> Any:
    if "value" in leaf:
        return leaf["value"]
    return torch.zeros(leaf["shape"], dtype=dtype_of(leaf["format"]))
