"""The captured graph run with gradients: every value tells what a change of it does to the outputs.

Takes a capture's module, its records and a `Ledger` of listeners; runs the graph once and gives the outputs to be
probed. It is a twin, never the model: parameters, buffers and inputs are detached, written buffers are copies, a
`no_grad` region and a `detach` of the user's let gradients through (what is computed there still reaches the output),
and a value that is saved and then written in place is kept as it was. Random ops draw what they drew beside the low
model. Where several ops read a value, each reads it through a view of its own, so that the gradient of each reader is
known: a cast concerns some of them only.

An op without a derivative cuts the path: its result starts a path of its own, and what led to it is in `cut`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from precision_audit import ops
from precision_audit.analyse.deltas import wrapped
from precision_audit.records import Graph, Op
from precision_audit.rewrite.converted import Converted

_PASSES = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)
_DIFFERENTIABLE = ("fp", "bf", "complex")
_VALUELESS = ("factory", "random")  # of their operands such ops read sizes and formats, or probabilities


class Ledger(Protocol):
    """Who wants to know of values and of their readers."""

    def made(self, value: str, tensor: Tensor) -> None: ...

    def read(self, value: str, tensor: Tensor, reader: str) -> None: ...


class Twin:
    """One run of the graph with gradients. `outputs` are the tensors to be probed, `leaves` where gradients end, `cut`
    values from which a path leads into an op without a derivative."""

    def __init__(self, module: Converted, graph: Graph, seeds: Mapping[str, int], ledger: Ledger) -> None:
        self._module, self._graph, self._seeds, self._ledger = module, graph, seeds, ledger
        self._ops = {op.key: op for op in graph.ops}
        self._written, self._apart = written(graph), read_apart(graph)
        self._names = names(module.graph)
        self._values: dict[fx.Node, Any] = {}
        self._probed = probed_values(graph)
        self.outputs: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self.cut: set[str] = set()

    def run(self, inputs: list[Any]) -> None:
        given = iter(inputs)
        for node in self._module.graph.nodes:
            if node.op == "output":
                self._finish(node)
                return
            if node.target is torch._C._set_grad_enabled:
                self._values[node] = None
                continue
            value = next(given) if node.op == "placeholder" else self._result(node)
            self._values[node] = self._listened(node, value)

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Saved tensors may be written in place, in the run and in every backward pass of it."""
        mutates = any(op.mutates for op in self._graph.ops)
        with torch.autograd.graph.allow_mutation_on_saved_tensors() if mutates else nullcontext():
            yield

    def _result(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            value: Any = self._module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            # buffers are put back after the run, which is a write; what was saved of them must not see it
            return value.detach().clone() if isinstance(value, Tensor) and self._is_written(node, value) else value
        key = node.meta.get("op_key", "")
        args, kwargs = self._arguments(node, key)
        if node.op == "call_module":
            return self._module.get_submodule(str(node.target))(*args, **kwargs)
        assert callable(node.target)
        torch.default_generator.manual_seed(self._seeds.get(key, 0))  # what beside the low model was seeded with
        if node.target in _PASSES:
            return args[0].view_as(args[0])
        return node.target(*args, **kwargs)

    def _is_written(self, node: fx.Node, value: Tensor) -> bool:
        return not isinstance(value, torch.nn.Parameter) or str(node.target) in self._module.written

    def _arguments(self, node: fx.Node, key: str) -> tuple[Any, Any]:
        op = self._ops.get(key)
        operands = op.operands if op is not None else ()
        target = {operand.value for operand in operands if op is not None and operand.argument == op.mutates}
        # statistics, scales: read as captured whatever the op runs in, and often without a derivative
        constant = {o.value for o in operands if op is not None and ops.role(op, o.argument, "") == "stays"}
        # a count or a decision has no gradient, and some kernels refuse to be asked for one
        decides = op is not None and not any(t.format.startswith(_DIFFERENTIABLE) for t in op.outputs)
        views: dict[fx.Node, Any] = {}

        def read(source: fx.Node) -> Any:
            name = self._names.get(source, "")
            value = self._values[source]
            if not key or name in target:
                return value
            if (decides or name in constant) and isinstance(value, Tensor):
                self.cut.update({name} & constant)
                return value.detach()
            if source not in views:
                views[source] = self._view(name, value, key)
            return views[source]

        return fx.map_arg(node.args, read), fx.map_arg(node.kwargs, read)

    def _view(self, name: str, value: Any, reader: str) -> Any:
        """What one reader reads: a view of its own, where others read the value too."""
        if not _listens(value):
            return value
        if name in self._apart:
            value = value.view_as(value)
            self._ledger.read(name, value, reader)
        return value

    def _listened(self, node: fx.Node, value: Any) -> Any:
        name = self._names.get(node, "")
        op = self._ops.get(node.meta.get("op_key", ""))
        if isinstance(value, Tensor) and name:
            if op is not None:  # a member of several outputs was seen to where they were made
                value = self._with_gradient(value, name, op)
            if _listens(value):
                self._ledger.made(name, value)
        elif isinstance(value, tuple | list) and op is not None:  # members are listened to where they are taken out
            members = [
                self._with_gradient(each, member, op) if isinstance(each, Tensor) else each
                for each, member in zip(value, op.values, strict=False)
            ]
            value = type(value)(members) if len(members) == len(value) else value
        return value

    def _with_gradient(self, value: Tensor, name: str, op: Op) -> Tensor:
        """A float tensor without a gradient of its own becomes a leaf."""
        if not (value.is_floating_point() or value.is_complex()) or wrapped(value):
            return value
        if op.kind in ("input", "parameter", "buffer", "constant") or not op.operands:
            return self._leaf(value, name)
        if value.requires_grad:
            function = value.grad_fn.name() if value.grad_fn is not None else ""
            if "NotImplemented" not in function:
                return value
        if op.mutates:
            return value
        if op.kind not in _VALUELESS:
            self.cut.update(operand.value for operand in op.operands)
        return self._leaf(value, name)

    def _leaf(self, value: Tensor, name: str) -> Tensor:
        leaf = value.detach().requires_grad_(True)
        self.leaves.append(leaf)
        return leaf.clone() if name in self._written else leaf

    def _finish(self, node: fx.Node) -> None:
        for index, leaf in enumerate(pytree.arg_tree_leaves(*node.args)):
            name = self._names.get(leaf, "") if isinstance(leaf, fx.Node) else ""
            if name in self._probed:
                self._probe(self._view(name, self._values[leaf], f"output:{index}"))
        asked = set(self._probed) - set(self._graph.outputs)
        for source, name in self._names.items():
            if name in asked:
                asked.discard(name)
                self._probe(self._values[source])
        self._values.clear()

    def _probe(self, value: Any) -> None:
        if isinstance(value, Tensor) and value.requires_grad and not wrapped(value) and value.numel():
            self.outputs.append(torch.view_as_real(value.resolve_conj()) if value.is_complex() else value)


def written(graph: Graph) -> set[str]:
    """Values whose memory is written in place."""
    found = {value for members in graph.aliases for value in members}
    found.update(o.value for op in graph.ops for o in op.operands if op.mutates and o.argument == op.mutates)
    return found


def read_apart(graph: Graph) -> set[str]:
    """Values whose readers are told apart: those with several, and those that do not stay what they were."""
    readers: dict[str, set[str]] = {}
    for op in graph.ops:
        for operand in op.operands:
            readers.setdefault(operand.value, set()).add(op.key)
    for index, value in enumerate(graph.outputs):
        readers.setdefault(value, set()).add(f"output:{index}")
    return {value for value, keys in readers.items() if len(keys) > 1} | written(graph)


def probed_values(graph: Graph) -> tuple[str, ...]:
    """Float outputs, and for an output that is an integer the last float values that it was made from."""
    makers = {value: (op, tensor) for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)}
    found: dict[str, None] = {}
    seen: set[str] = set()
    left = [value for value in reversed(graph.outputs) if value]
    while left:
        value = left.pop()
        if value in seen or value not in makers:
            continue
        seen.add(value)
        op, tensor = makers[value]
        if tensor.format.startswith(_DIFFERENTIABLE):
            found[value] = None
        else:
            left.extend(operand.value for operand in reversed(op.operands))
    return tuple(found)


def names(graph: fx.Graph) -> dict[fx.Node, str]:
    """The value that each node stands for. An op with several outputs has none itself, its members have."""
    found: dict[fx.Node, str] = {}
    for node in graph.nodes:
        key, source = node.meta.get("op_key"), node.args[0] if node.args else None
        if key is not None:
            if not isinstance(node.meta.get("val"), tuple | list):
                found[node] = key
        elif node.target is operator.getitem and isinstance(source, fx.Node) and "op_key" in source.meta:
            single = len(source.meta["val"]) == 1 if isinstance(source.meta.get("val"), tuple | list) else False
            found[node] = source.meta["op_key"] if single else f"{source.meta['op_key']}:{node.args[1]}"
    return found


def _listens(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and value.is_floating_point() and not wrapped(value)
