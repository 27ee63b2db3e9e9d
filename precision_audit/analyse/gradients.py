"""One forward and backward of a captured graph in which every gradient is seen as it passes.

Takes a module over a captured graph, its records and the model's inputs; calls a listener with the gradient of every
value and of each of its readers, which may put another in its place, and gives the gradients of the parameters. Unlike
`twin.py` this is the training step itself: parameters and regions without gradient are what they are in the model, and
nothing is detached. Where several ops read a value each reads a view of its own, so that what a reader gave can be told
from the sum. Keeps nothing of what it hands out, and no hook stays on a tensor of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from precision_audit.ambient import restored_on_error
from precision_audit.analyse.deltas import wrapped
from precision_audit.analyse.twin import names, read_apart, written
from precision_audit.capture import Captured
from precision_audit.records import Graph
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.runs import Batch, Conditions, dense, flatten, norms_of, scalar, trainable, without_trace

Edge = tuple[str, str]  # a value and the op that reads it; "" for the value as a whole
Listener = Callable[[Edge, Tensor], Tensor | None]  # what it returns, if anything, goes on in place of the gradient


def gradients(
    captured: Captured,
    module: Converted,
    batch: Batch,
    conditions: Conditions,
    listen: Listener,
    norms: Mapping[str, float] | None = None,
    scale: float = 1.0,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Gradients of the parameters by name, not multiplied by `scale`, and the norms of the outputs. What is listened to
    is multiplied by it. Empty where no output depends on a parameter."""
    parameters = trainable(module)
    with torch.enable_grad(), restored_on_error(), without_trace(module, conditions):
        args, kwargs = pytree.tree_map_only(Tensor, _copied, (batch[0], dict(batch[1])))
        leaves = _Watched(captured.graph, module, listen).run(module.flatten(args, kwargs))
        output = pytree.tree_unflatten(leaves, captured.out_spec)
        named = flatten(output, conditions.names)
        used = norms_of(named) if norms is None else dict(norms)
        total = scalar(output, named, used, conditions)
        if not total.requires_grad:
            return {}, used
        unique = list({id(each): each for each in parameters.values()}.values())
        found = torch.autograd.grad(total * scale, unique, allow_unused=True)
        made = {id(p): dense(each) / scale for p, each in zip(unique, found, strict=True) if each is not None}
        return {name: made[id(p)] for name, p in parameters.items() if id(p) in made}, used


class _Watched:
    """Runs the graph node by node."""

    def __init__(self, graph: Graph, module: Converted, listen: Listener) -> None:
        self._module, self._listen = module, listen
        self._written = written(graph)
        self._apart = read_apart(graph) - self._written
        self._names = names(module.graph)
        for node in module.graph.nodes:  # a cast stands for what it casts
            if "cast" in node.meta and node.args and node.args[0] in self._names:
                self._names[node] = self._names[node.args[0]]
        self._values: dict[fx.Node, Any] = {}

    def run(self, inputs: list[Any]) -> list[Any]:
        given = iter(inputs)
        for node in self._module.graph.nodes:
            if node.op == "output":
                return self._outputs(node)
            value = next(given) if node.op == "placeholder" else self._result(node)
            self._values[node] = value if "cast" in node.meta else self._heard(node, value)
        raise AssertionError("a graph without an output")

    def _result(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            value: Any = self._module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            # a hook on the parameter itself would stay there
            owned = isinstance(value, Tensor) and value.requires_grad and self._names.get(node, "") not in self._written
            return torch.ops.aten.alias.default(value) if owned else value  # hands sparse gradients back, too
        reader = node.meta.get("op_key", "")
        args = fx.map_arg(node.args, lambda source: self._read(source, reader))
        kwargs = fx.map_arg(node.kwargs, lambda source: self._read(source, reader))
        if node.op == "call_module":
            return self._module.get_submodule(str(node.target))(*args, **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _read(self, source: fx.Node, reader: str) -> Any:
        """What one reader reads: a view of its own, where others read the value too."""
        name, value = self._names.get(source, ""), self._values[source]
        if not reader or name not in self._apart or not _listens(value):
            return value
        value = value.view_as(value)
        value.register_hook(partial(self._passed, (name, reader)))
        return value

    def _heard(self, node: fx.Node, value: Any) -> Any:
        name = self._names.get(node, "")
        if name and _listens(value) and not isinstance(value, torch.nn.Parameter):
            value.register_hook(partial(self._passed, (name, "")))
        return value

    def _passed(self, edge: Edge, gradient: Tensor | None) -> Tensor | None:
        if gradient is not None and not wrapped(gradient) and gradient.numel() and gradient.layout == torch.strided:
            return self._listen(edge, gradient.detach())
        return None

    def _outputs(self, node: fx.Node) -> list[Any]:
        found = []
        for index, leaf in enumerate(pytree.arg_tree_leaves(*node.args)):
            found.append(self._read(leaf, f"output:{index}") if isinstance(leaf, fx.Node) else leaf)
        return found


def _listens(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and value.is_floating_point() and not wrapped(value)


def _copied(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)
