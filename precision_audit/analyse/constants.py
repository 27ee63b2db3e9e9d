"""What depends on no input: parameters, buffers, constants, factories and arithmetic on them, known without a batch.

Takes a capture; gives which values those are and, by running that part of the graph alone, their numbers. Sizes are the
example's where they are symbolic. Without weights only what needs none is run. Never runs an op that draws random
numbers or hands out memory as it finds it, and changes no state: the caller restores it.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from precision_audit import ops
from precision_audit.capture import Captured
from precision_audit.capture.names import example_size
from precision_audit.capture.regions import is_marker
from precision_audit.records import Graph

# Hand out memory as it is: what it holds is no number of the model.
UNWRITTEN = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


def cleared(node: fx.Node, result: Any) -> Any:
    """The result, zero where it is memory that nobody has written yet: whatever lay there is no number of the model."""
    if getattr(node.target, "_opname", "") in UNWRITTEN and isinstance(result, torch.Tensor):
        with torch.no_grad():
            result.zero_()
    return result


def independent(graph: Graph) -> frozenset[str]:
    """Values that depend on no input and no random draw: the same in every call."""
    found: set[str] = set()
    tainted: set[str] = set()  # share memory with something that was overwritten with what depends on an input
    shared = {value: members for members in graph.aliases for value in members}
    for op in graph.ops:
        row = ops.row(op.op)
        drawn = op.kind in ("input", "random") or (row is not None and row.kind == "random") or op.op in UNWRITTEN
        if not drawn and all(each.value in found and each.value not in tainted for each in op.operands):
            found.update(op.values)
        elif op.mutates:
            for each in op.operands:
                if each.argument == op.mutates:
                    tainted.update(shared.get(each.value, (each.value,)))
    return frozenset(found)


def sized(captured: Captured) -> frozenset[str]:
    """Values whose shape or numbers depend on a symbolic size: `arange(n)`, and what is made of it."""
    found: set[str] = set()
    for op in captured.graph.ops:
        node = captured.nodes[op.key]
        by_size = any(_is_size(each.meta.get("val")) for each in node.all_input_nodes)
        if by_size or any(operand.value in found for operand in op.operands):
            found.update(op.values)
    return frozenset(found)


def evaluated(graph: fx.Graph, root: torch.nn.Module, constant: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Key and result of every op that depends on no input, in graph order; `root` holds the state. A result is freed
    after its last reader. An op that cannot be run so is left out."""
    made: dict[fx.Node, Any] = {}
    heads = {value.partition(":")[0] for value in constant}
    last = {read: index for index, node in enumerate(graph.nodes) for read in node.all_input_nodes}
    for index, node in enumerate(graph.nodes):
        key = node.meta.get("op_key")
        if _is_size(node.meta.get("val")):
            with contextlib.suppress(Exception):  # a size that nobody knows
                made[node] = example_size(node.meta["val"])
        elif (key in heads if key is not None else _is_plumbing(node)) and all(n in made for n in node.all_input_nodes):
            with contextlib.suppress(Exception):
                made[node] = _run(node, root, made)
                if not _is_real(made[node]):
                    del made[node]
        if key is not None and node in made:
            yield key, made[node]
        for read in node.all_input_nodes:
            if last[read] == index:
                made.pop(read, None)


def _run(node: fx.Node, root: torch.nn.Module, made: Mapping[fx.Node, Any]) -> Any:
    if node.op == "get_attr":
        value: Any = root
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return value
    args, kwargs = fx.map_arg(node.args, made.__getitem__), fx.map_arg(node.kwargs, made.__getitem__)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _is_plumbing(node: fx.Node) -> bool:
    """Nodes that are no ops and are needed to run those that are."""
    if node.op != "call_function":
        return False
    return node.target is operator.getitem or is_marker(node)


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.SymInt)


def _is_real(result: Any) -> bool:
    """Whether there are numbers behind all tensors of a result."""
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    return not any(isinstance(leaf, FakeTensor) or leaf.is_meta for leaf in tensors)
