"""The module that comes out: one or two FX graphs over one set of parameters.

`Converted` holds parameters and buffers under the names of the original's state dict and a *side* per captured mode;
`.train()` and `.eval()` switch between them. It trains, deep-copies, compiles with `torch.compile`, and its evaluation
side exports again with `torch.export`. It is also how a captured graph is run unchanged, as the reference.

It must never hold anything that ties it to this package at run time beyond this file: the code it runs is the
generated code of its graphs.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from precision_audit.ambient import restored_on_error
from precision_audit.capture.handwritten import names
from precision_audit.capture.spelling import restored
from precision_audit.records import Mode, Plan
from precision_audit.rewrite.calls import check_formats, check_sizes

_serial = itertools.count()


@dataclass(frozen=True)
class Side:
    """One mode of a converted module: its graph, how inputs and outputs are nested, and the compiled code."""

    graph: fx.Graph
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    run: Callable[..., tuple[Any, ...]]
    regions: bool = False  # enters and leaves regions by nodes
    sizes: tuple[tuple[str, tuple[int | str, ...]], ...] = ()  # name and captured sizes per input, symbols as text

    def __deepcopy__(self, memo: dict[int, Any]) -> Side:
        return replace(self, graph=copy.deepcopy(self.graph, memo))


class Converted(nn.Module):
    """A converted (or captured) model.

    `graph` is the FX graph of the present mode; `plans` what was applied to each mode. Calling it takes what the
    original took, positionally or by name, and returns the same structure, formats and shapes.
    """

    def __init__(
        self,
        state: nn.Module,
        sides: Mapping[Mode, Side],
        plans: Mapping[Mode, Plan] | None = None,
        signature: inspect.Signature | None = None,
        missing: str = "",
    ) -> None:
        super().__init__()
        _adopt(self, state)
        self._sides: dict[Mode, Side] = dict(sides)
        self.plans: dict[Mode, Plan] = dict(plans or {})
        self._signature = signature
        self._missing = missing  # why the other mode could not be captured
        self.written: frozenset[str] = frozenset()  # parameters that a forward pass itself changes (max_norm)
        self.copies: dict[str, tuple[str, torch.dtype]] = {}  # low copy → the parameter it is made from
        self.spelled: dict[str, str] = {}  # names at the top that had to change → the original's
        self.training = "training" in self._sides
        self.register_load_state_dict_post_hook(_refresh_copies)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_take_original_names)  # type: ignore[no-untyped-call]
        self.register_state_dict_post_hook(_give_original_names)  # type: ignore[no-untyped-call]

    @property
    def graph(self) -> fx.Graph:
        return self._side.graph

    @property
    def modes(self) -> tuple[Mode, ...]:
        return tuple(self._sides)

    @property
    def functions(self) -> frozenset[str]:
        """The `torch.autograd.Function`s that it runs as they were written, by name."""
        return frozenset().union(*(names(side.graph) for side in self._sides.values()))

    @property
    def _side(self) -> Side:
        mode: Mode = "training" if self.training else "inference"
        if mode not in self._sides:
            other = "evaluation" if mode == "training" else "training"
            why = f" ({self._missing})" if self._missing else ""
            raise RuntimeError(
                f"this module was captured in {other} mode only{why}; "
                f"call .{'eval' if mode == 'training' else 'train'}() or convert with a policy of the other mode"
            )
        return self._sides[mode]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        side = self._side
        flat = self._flatten(side.in_spec, args, kwargs)
        check_sizes(side.sizes, flat)  # under torch.compile too: sizes are constants of the graph
        if not torch.compiler.is_compiling():
            check_formats(side.graph, flat)
        if side.regions and not torch.compiler.is_compiling():
            with restored_on_error():
                return pytree.tree_unflatten(side.run(self, *flat), side.out_spec)
        return pytree.tree_unflatten(side.run(self, *flat), side.out_spec)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """As any module's, under the original's names (but not where another module that holds this one lists them)."""
        dot = f"{prefix}." if prefix else ""
        for path, parameter in super().named_parameters("", recurse, remove_duplicate):
            yield dot + restored(path, self.spelled), parameter

    def _apply(self, fn: Any, recurse: bool = True) -> Converted:
        """`.to(device)` and its like: swapped modules emulate fp8 exactly where the device they are on lacks it."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if any(plan.swaps for plan in self.plans.values()):
            from precision_audit.backends import torchao_float8, torchao_quantize

            torchao_float8.match_device(self)
            torchao_quantize.match_device(self)
        return self

    def as_read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with float inputs in the formats that the graph reads: a policy with `keep_io_types: false`
        lowers the inputs, and whoever calls the module hands them over so."""
        side = self._side
        flat = self._flatten(side.in_spec, args, dict(kwargs))
        inputs = [node.meta.get("val") for node in side.graph.nodes if node.op == "placeholder"]
        cast = [_like(value, seen) for value, seen in zip(flat, inputs, strict=True)]
        found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(cast, side.in_spec)
        return found

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The flat inputs of the present graph for a call with `args` and `kwargs`."""
        return self._flatten(self._side.in_spec, args, dict(kwargs))

    def unflatten(self, flat: Sequence[Any]) -> Any:
        """The output as the original nests it, from the flat results of the present graph."""
        return pytree.tree_unflatten(list(flat), self._side.out_spec)

    def _flatten(self, in_spec: pytree.TreeSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec == in_spec:
            return flat
        args, kwargs = self._arranged(in_spec, args, kwargs)
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != in_spec:
            raise TypeError(f"called with {_outline(spec)}, but captured with {_outline(in_spec)}")
        return flat

    def _arranged(
        self, in_spec: pytree.TreeSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with arguments positional or by name as they were when captured."""
        positional, named = in_spec.child(0).num_children, list(in_spec.child(1).context or [])
        values = dict(kwargs)
        order = list(self._signature.parameters) if self._signature else []
        for name, value in zip(order, args, strict=False):
            values.setdefault(name, value)
        if len(args) > len(order):
            return args, {name: kwargs[name] for name in named if name in kwargs}
        wanted = order[:positional]
        if not all(name in values for name in [*wanted, *named]):
            return args, kwargs
        extra = set(values) - set(wanted) - set(named)
        kept = {name: values[name] for name in extra if not self._is_default(name, values[name])}
        return tuple(values[name] for name in wanted), {**{name: values[name] for name in named}, **kept}

    def _is_default(self, name: str, value: Any) -> bool:
        if name == "use_cache" and value is False:  # captured so
            return True
        parameter = self._signature.parameters.get(name) if self._signature else None
        return parameter is not None and parameter.default is value


def side(graph: fx.Graph, in_spec: pytree.TreeSpec, out_spec: pytree.TreeSpec) -> Side:
    """Compile a flat graph to a function of (module, *flat inputs)."""
    regions = any(_changes_modes(node.target) for node in graph.nodes if node.op == "call_function")
    sizes = tuple(_sizes(node) for node in graph.nodes if node.op == "placeholder")
    return Side(graph, in_spec, out_spec, compile_graph(graph), regions, sizes)


def _sizes(node: fx.Node) -> tuple[str, tuple[int | str, ...]]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
        return str(node.target), ()
    return str(node.target), tuple(size if isinstance(size, int) else str(size) for size in value.shape)


def _changes_modes(target: Any) -> bool:
    """Region markers and functorch's levels are functions of torch that are no ops."""
    return str(getattr(target, "__module__", "")).startswith("torch.") and not isinstance(
        target, torch._ops.OperatorBase | torch._ops.OpOverloadPacket
    )


def compile_graph(graph: fx.Graph) -> Callable[..., tuple[Any, ...]]:
    """The generated code of `graph` as a function; its text is kept for tracebacks and for `torch.compile`."""
    code = graph.python_code(root_module="self")
    name = f"<precision_audit graph {next(_serial)}>"
    linecache.cache[name] = (len(code.src), None, code.src.splitlines(keepends=True), name)
    scope: dict[str, Any] = dict(code.globals)
    exec(compile(code.src, name, "exec"), scope)
    forward: Callable[..., tuple[Any, ...]] = scope["forward"]
    return forward


def _adopt(target: nn.Module, state: nn.Module) -> None:
    """Take over the children, parameters, buffers and tensor constants of `state`."""
    for name, child in state._modules.items():
        target.add_module(name, child)
    for name, parameter in state._parameters.items():
        target.register_parameter(name, parameter)
    for name, buffer in state._buffers.items():
        target.register_buffer(name, buffer, persistent=name not in state._non_persistent_buffers_set)
    for name, value in vars(state).items():
        if isinstance(value, torch.Tensor) or hasattr(value, "_type"):
            object.__setattr__(target, name, value)


def _refresh_copies(module: nn.Module, _incompatible: Any) -> None:
    """After a checkpoint was loaded: bring the low copies of parameters up to date with their originals."""
    assert isinstance(module, Converted)
    with torch.no_grad():
        for path, (original, low) in module.copies.items():
            module.get_buffer(path).copy_(module.get_parameter(original).to(low))


def _give_original_names(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """The state dict has the names of the original's."""
    assert isinstance(module, Converted)
    if module.spelled:
        for key in [key for key in state if key.startswith(prefix)]:  # all, so that their order stays
            state[prefix + restored(key.removeprefix(prefix), module.spelled)] = state.pop(key)


def _take_original_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """And is read by them."""
    assert isinstance(module, Converted)
    names = {name: new for new, name in module.spelled.items()}
    for key in [key for key in state if key.startswith(prefix)] if names else []:
        state[prefix + restored(key.removeprefix(prefix), names)] = state.pop(key)


def _like(value: Any, seen: Any) -> Any:
    both = isinstance(value, torch.Tensor) and isinstance(seen, torch.Tensor)
    if not both or not value.is_floating_point() or value.dtype == seen.dtype:
        return value
    return value.detach().to(seen.dtype).requires_grad_(value.requires_grad)


def _outline(spec: pytree.TreeSpec) -> str:
    positional = spec.child(0).num_children
    named = ", ".join(spec.child(1).context or [])
    return f"{positional} positional arguments" + (f" and {named}" if named else "")
