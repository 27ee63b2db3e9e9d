"""Hand-written gradients kept whole: a `torch.autograd.Function` of the user's as one op, which runs the class itself.

Takes an `apply` that is met while export traces; gives its result, written down as one node in place of the nodes of
its forward, which alone export would keep. After the capture each such node calls the user's class with the tensors it
reads; what else it was given is held by the call. So it trains as it was written, and whoever exports or compiles the
graph again meets the class and not this package. Never keeps what would not be the same call later: see `_why_not`.

Why a function of torch's stands in while tracing: export refuses targets that are neither ops nor known to it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.export.custom_ops
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import (
    PythonKeyTracer,
    disable_proxy_modes_tracing,
    get_proxy_mode,
    track_tensor_tree,
)
from torch.utils import _pytree as pytree

PREFIX = "function::"  # of the names of such ops
_STAND_IN = getattr(torch.export.custom_ops, "_call_custom_autograd_function_in_pre_dispatch", None)
_HELD = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, enum.Enum, slice)
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)

Apply = Callable[..., Any]


class Kept:
    """The calls that one capture keeps, in the order in which they were traced."""

    def __init__(self) -> None:
        self._calls: list[Apply] = []

    def trace(self, apply: Apply, cls: Any, args: tuple[Any, ...]) -> tuple[Any, str]:
        """The result of `apply(cls, *args)` as one node; or why that is not possible, with no result."""
        mode = get_proxy_mode()
        why_not = _why_not(cls, args) if mode is not None and _STAND_IN is not None else "this torch cannot trace it"
        if why_not:
            return None, why_not
        assert mode is not None and _STAND_IN is not None
        tracer = mode.tracer
        assert isinstance(tracer, PythonKeyTracer)
        tensors = [each for each in pytree.tree_leaves(args) if isinstance(each, Tensor)]
        versions = [each._version for each in tensors]
        with disable_proxy_modes_tracing(), torch._C.DisableTorchFunction():
            output = apply(cls, *args)
            if versions != [each._version for each in tensors]:
                return None, "it writes to its input"
            made = list(output) if isinstance(output, tuple) else [output]
            if not all(isinstance(each, Tensor) for each in made):
                return None, "it returns more than tensors"
            made = [each.view_as(each) if any(each is one for one in tensors) else each for each in made]
        output = tuple(made) if isinstance(output, tuple) else made[0]
        held = {index: value for index, value in enumerate(args) if not _is_read(value)}
        read = [tracer.unwrap_proxy(value) for value in args if _is_read(value)]
        proxy = tracer.create_proxy("call_function", _STAND_IN, (str(len(self._calls)), *read), {})
        self._calls.append(_applying(cls, held))
        return track_tensor_tree(output, proxy, constant=None, tracer=tracer), ""

    def put(self, root: fx.GraphModule) -> None:
        """Every stand-in of a captured graph becomes the call it stands for."""
        for module in root.modules():
            if isinstance(module, fx.GraphModule):
                found = [node for node in module.graph.nodes if _STAND_IN is not None and node.target is _STAND_IN]
                for node in found:
                    self._put(module.graph, node)
                if found:
                    module.recompile()

    def _put(self, graph: fx.Graph, node: fx.Node) -> None:
        call = self._calls[int(str(node.args[0]))]
        with graph.inserting_before(node):
            put = graph.create_node("call_function", call, node.args[1:], {}, call.__name__.lower())
        put.meta.update(node.meta)
        node.replace_all_uses_with(put)
        graph.erase_node(node)


def class_of(target: Any) -> type | None:
    """The class that a node's target applies, None for every other target."""
    return getattr(target, "applied", None) if isinstance(target, FunctionType) else None


def names(graph: fx.Graph) -> frozenset[str]:
    """The classes that a graph applies, by name."""
    return frozenset(each.__name__ for each in (class_of(node.target) for node in graph.nodes) if each is not None)


def _applying(cls: Any, held: Mapping[int, Any]) -> Apply:
    """A function of the tensors that `cls` reads; the other arguments are `held`, by position."""

    def call(*read: Any) -> Any:
        given = list(read)
        for index in sorted(held):
            given.insert(index, held[index])
        return cls.apply(*given)

    call.__name__ = call.__qualname__ = cls.__name__
    call.__module__ = cls.__module__
    call.applied = cls  # type: ignore[attr-defined]
    return call


def _is_read(value: Any) -> bool:
    """Whether an argument is a value of the graph."""
    return isinstance(value, (Tensor, *_SYMBOLS))


def _why_not(cls: Any, args: Sequence[Any]) -> str:
    """Why a later call with the same tensors would not be the same, or nothing."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "it is applied inside a torch.func transform"
    for each in (cls.forward, cls.backward, cls.setup_context):
        cells = [cell.cell_contents for cell in getattr(each, "__closure__", None) or ()]
        if any(isinstance(value, (Tensor, nn.Module)) for value in cells):
            return "its class closes over tensors or modules"
    for index, value in enumerate(args):
        if not _is_read(value) and not all(_can_hold(leaf) for leaf in pytree.tree_leaves(value)):
            return f"its argument {index} is a {type(value).__name__}, which may hold tensors"
    return ""


def _can_hold(value: Any) -> bool:
    plain = isinstance(value, FunctionType) and not value.__closure__
    return isinstance(value, (*_HELD, type)) or plain
