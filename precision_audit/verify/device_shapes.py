"""Run a swapped module's shapes through CUDA's own checks, without a GPU.

Takes a module with `Float8Linear` in it and example inputs; runs forward and backward of a copy on `device="meta"`,
where torch applies the size and layout rules of CUDA's `_scaled_mm`; gives "pass" or one line that names the swapped
module that failed and what torch said. The copy holds no weights, so that the model's size does not matter.

It knows shapes, strides and formats only: no GPU generation, no library version, no size that data decide. Must never
touch the module it is given.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from precision_audit.backends.torchao_float8 import is_swapped, match_device
from precision_audit.records import Mode

_META = torch.device("meta")


def check_shapes(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, mode: Mode = "training"
) -> str:
    """ "pass", "<module path>: <torch's words>", or "not checked: <why>" where a size depends on data.

    Backward runs in mode "training", from every output that has a gradient.
    """
    twin = on_meta(module)
    inside: list[str] = []
    hooks = [_watch(child, path, inside) for path, child in twin.named_modules() if is_swapped(child)]
    args, kwargs = pytree.tree_map_only(torch.Tensor, _to_meta, (tuple(args), dict(kwargs or {})))
    try:
        with _OnMeta(), torch.set_grad_enabled(mode == "training"), contextlib.redirect_stderr(io.StringIO()):
            outputs = [leaf for leaf in pytree.tree_leaves(twin(*args, **kwargs)) if _needs_gradient(leaf)]
            if outputs:
                torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    except Exception as error:
        text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        # A rule of _scaled_mm fails inside a swapped module; a failure elsewhere comes of meta's having no numbers.
        return f"{inside[-1]}: {text}" if inside else f"not checked: {text}"
    finally:
        for hook in hooks:
            hook.remove()
    return "pass"


def on_meta(module: nn.Module) -> nn.Module:
    """A copy of `module` on the meta device, ties kept, whose fp8 products are not emulated."""
    memo: dict[int, Any] = {}
    for child in module.modules():
        for value in [*child._parameters.values(), *child._buffers.values(), *vars(child).values()]:
            if isinstance(value, torch.Tensor):
                memo[id(value)] = _to_meta(value)
    twin = copy.deepcopy(module, memo)
    match_device(twin)
    return twin


def _to_meta(value: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(value.detach(), device=_META)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(empty, requires_grad=value.requires_grad)
    return empty.requires_grad_(value.requires_grad)


def _needs_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _watch(child: nn.Module, path: str, inside: list[str]) -> Any:
    """Keep the path of the swapped module that is running, forward or backward, last in `inside`."""

    def enter(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        inside.append(path)
        if inputs[0].requires_grad:
            _on_gradient(inputs[0], lambda gradient: inside.clear())

    def leave(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        inside.clear()
        if output.requires_grad:
            _on_gradient(output, lambda gradient: inside.append(path))

    first = child.register_forward_pre_hook(enter)
    second = child.register_forward_hook(leave)
    return _Both(first, second)


def _on_gradient(tensor: torch.Tensor, act: Callable[[torch.Tensor], None]) -> None:
    tensor.register_hook(act)  # type: ignore[no-untyped-call]


class _Both:
    """Two hook handles removed together."""

    def __init__(self, *handles: Any) -> None:
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


class _OnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Devices that capture wrote into the graph (`arange(device="cpu")`) become meta."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: _META, (args, dict(kwargs or {})))
        return func(*args, **kwargs)
