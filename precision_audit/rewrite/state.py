"""Parameters, buffers and constants of a converted module: cloned, kept tied, folded.

Takes the roots of one or two captures (which share their tensors with each other); gives one module tree that holds a
clone of each tensor under its original name. Two names of one tensor, or of one storage, stay tied. Never changes a
captured root.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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


def cloned_state(roots: Sequence[fx.GraphModule], share: bool, folds: Iterable[Fold] = ()) -> State:
    """One tree of state for all `roots`: clones, in the low format where a fold says so and the original is not kept;
    with `share` the tensors themselves where they are not folded."""
    tree, memo = nn.Module(), dict[int, Any]()
    lowered = {each.value: dtype_of(each.to) for each in folds if not each.copy}
    low_twins: dict[int, Any] = {}
    renamed = []
    for number, root in enumerate(roots):
        names: dict[str, str] = {}
        for path, value, role in _walk(root):
            if path in lowered:
                if id(value) not in low_twins:
                    low_twins[id(value)] = _in_format(value, lowered[path])
                clone = low_twins[id(value)]
            else:
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


def copy_paths(state: nn.Module, folds: Iterable[Fold], swapped: Collection[str] = ()) -> dict[tuple[str, str], str]:
    """Where the low copy of a parameter goes that is also read in the high format, by value and format: beside it,
    under a name that the model has not; at the top where the module that holds it is swapped for another."""
    paths: dict[tuple[str, str], str] = {}
    for each in folds:
        if each.copy and (each.value, each.to) not in paths:
            name = each.value.replace(".", "_") if each.value.rpartition(".")[0] in swapped else each.value
            path = f"{name}_{each.to}"
            while _holds(state, path) or path in paths.values():
                path += "_"
            paths[each.value, each.to] = path
    return paths


def low_copies(
    state: nn.Module, folds: Iterable[Fold], paths: Mapping[tuple[str, str], str]
) -> dict[str, tuple[str, torch.dtype]]:
    """Put low copies beside the parameters that are read in both formats; (original, format) of each, by its path."""
    copies: dict[str, tuple[str, torch.dtype]] = {}
    twins: dict[tuple[int, torch.dtype], torch.Tensor] = {}  # tied names share one copy
    for each in folds:
        if each.copy:
            low, original = dtype_of(each.to), _get(state, each.value)
            if (id(original), low) not in twins:
                twins[id(original), low] = original.detach().to(low)
            path = paths[each.value, each.to]
            put(state, path, twins[id(original), low], "transient buffer")
            copies[path] = (each.value, low)
    return copies


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
    if isinstance(value, torch.Tensor) and value.layout not in (torch.strided, torch.sparse_coo):
        return value.clone()  # a compressed sparse tensor cannot be deep-copied
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


def _in_format(value: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    data = value.detach().to(low)
    return nn.Parameter(data, value.requires_grad) if isinstance(value, nn.Parameter) else data
