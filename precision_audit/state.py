"""Parameters, buffers and constants of a converted module: cloned, kept tied, folded.

Takes the roots of one or two captures (which share their tensors with each other); gives one module tree that holds a
clone of each tensor under its original name. Two names of one tensor, or of one storage, stay tied. Never changes a
captured root.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from precision_audit.formats import dtype_of
from precision_audit.records import Fold


@dataclass(frozen=True)
class State:
    """`module` holds the tensors; `renamed[i]` maps constants of root i to the names they have there."""

    module: nn.Module
    renamed: tuple[dict[str, str], ...]


def cloned_state(roots: Sequence[fx.GraphModule], share: bool) -> State:
    """One tree of state for all `roots`; with `share` the tensors themselves instead of clones."""
    tree, memo = nn.Module(), dict[int, Any]()
    renamed = []
    for number, root in enumerate(roots):
        names: dict[str, str] = {}
        for path, value, role in _walk(root):
            clone = value if share else _clone(value, memo)
            place = path
            if _holds(tree, path):
                if _get(tree, path) is clone or role in ("parameter", "buffer"):
                    continue
                place = f"{path}_{number}"  # both captures number their constants from zero
                names[path] = place
            put(tree, place, clone, role)
        renamed.append(names)
    return State(tree, tuple(renamed))


def fold(state: nn.Module, folds: Iterable[Fold]) -> dict[str, tuple[str, torch.dtype]]:
    """Store parameters in their low format; returns low copies that live beside their originals, by path."""
    lowered: dict[int, Any] = {}
    copies: dict[str, tuple[str, torch.dtype]] = {}
    for each in folds:
        original = _get(state, each.value)
        low = dtype_of(each.to)
        if each.copy:
            path = copy_path(each)
            put(state, path, original.detach().to(low), "transient buffer")
            copies[path] = (each.value, low)
            continue
        if id(original) not in lowered:
            data = original.detach().to(low)
            is_parameter = isinstance(original, nn.Parameter)
            lowered[id(original)] = (nn.Parameter(data, original.requires_grad) if is_parameter else data, original)
        _replace(state, each.value, lowered[id(original)][0])
    return copies


def copy_path(each: Fold) -> str:
    """Where the low copy of a parameter lives that is also read in the high format."""
    return f"{each.value}_{each.to}"


def put(tree: nn.Module, path: str, value: Any, role: str) -> None:
    """Register `value` at `path`, making the modules on the way."""
    *parents, name = path.split(".")
    module = tree
    for part in parents:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    if role == "parameter":
        module.register_parameter(name, value)
    elif role in ("buffer", "transient buffer"):
        module.register_buffer(name, value, persistent=role == "buffer")
    elif role == "module":
        module.add_module(name, value)
    else:
        setattr(module, name, value)


def _walk(root: fx.GraphModule) -> Iterator[tuple[str, Any, str]]:
    for prefix, module in root.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        if prefix and isinstance(module, fx.GraphModule):  # the body of a higher-order op, whole
            if "." not in prefix:
                yield prefix, module, "module"
            continue
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield dot + name, parameter, "parameter"
        for name, buffer in module._buffers.items():
            if buffer is not None:
                kept = name not in module._non_persistent_buffers_set
                yield dot + name, buffer, "buffer" if kept else "transient buffer"
        for name, value in list(vars(module).items()):
            if isinstance(value, (torch.Tensor, torch.ScriptObject)):
                yield dot + name, value, "constant"


def _clone(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor) and not value.is_leaf:
        return copy.deepcopy(value.detach(), memo)
    return copy.deepcopy(value, memo)


def _holds(tree: nn.Module, path: str) -> bool:
    try:
        _get(tree, path)
    except AttributeError:
        return False
    return True


def _get(tree: nn.Module, path: str) -> Any:
    value: Any = tree
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _replace(tree: nn.Module, path: str, value: Any) -> None:
    parent, _, name = path.rpartition(".")
    module = tree.get_submodule(parent)
    if name in module._parameters:
        module._parameters[name] = value
    elif name in module._buffers:
        module._buffers[name] = value
    else:
        setattr(module, name, value)
