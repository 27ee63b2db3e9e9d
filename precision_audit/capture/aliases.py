"""Who shares memory: alias classes that are written in place, and parameters under several names.

Takes ops and their FX nodes; gives classes of values in which at least one member is written in place, with the
values that belong to state (a buffer, a parameter or an input that the model updates). The alias annotations of each
op's schema are the source. Classes in which nothing is written are no concern: a view of a lowered tensor may be
read through a cast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from precision_audit.capture.handwritten import class_of
from precision_audit.records import Graph, Op

# Ops that hand back their input itself when they have nothing to do; their schema does not say so.
_IDENTITY = {"dropout": "train", "feature_dropout": "train", "alpha_dropout": "train", "feature_alpha_dropout": "train"}
_STATE = ("parameter", "buffer", "constant", "input")


def alias_classes(
    ops: Iterable[Op], nodes: Mapping[str, fx.Node]
) -> tuple[tuple[tuple[str, ...], ...], frozenset[str]]:
    """Alias classes with a member written in place, and all values of those classes that hold state."""
    ops = tuple(ops)
    union = _Union()
    written: set[str] = set()
    for op in ops:
        shared = _shared_arguments(op, nodes[op.key])
        for operand in op.operands:
            if operand.argument in shared:
                for value in op.values:
                    union.join(operand.value, value)
            if operand.argument == op.mutates:
                written.add(operand.value)
    state = {value for op in ops if op.kind in _STATE for value in op.values}
    groups: dict[str, list[str]] = defaultdict(list)
    for op in ops:
        for value in op.values:
            groups[union.root(value)].append(value)
    mutated = {union.root(value) for value in written}
    classes = [tuple(groups[root]) for root in groups if root in mutated]
    stateful = frozenset(value for members in classes if any(m in state for m in members) for value in members)
    return tuple(members for members in classes if len(members) > 1), stateful


def written_parameters(graph: Graph) -> frozenset[str]:
    """Parameters that the model changes while it runs, itself or through a view (`Embedding(max_norm=…)`)."""
    parameters = {op.key for op in graph.ops if op.kind == "parameter"}
    shared = {value: members for members in graph.aliases for value in members}
    written = {each.value for op in graph.ops if op.mutates for each in op.operands if each.argument == op.mutates}
    return frozenset(each for value in written for each in shared.get(value, (value,)) if each in parameters)


def storages(root: fx.GraphModule, keys: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Keys of parameters and buffers that share one storage, where there are several."""
    groups: dict[int, list[str]] = defaultdict(list)
    for key in keys:
        value = root
        for part in key.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            groups[_identity(value)].append(key)
    return tuple(tuple(sorted(names)) for names in groups.values() if len(names) > 1)


def _identity(tensor: torch.Tensor) -> int:
    if tensor.is_meta or isinstance(tensor, FakeTensor):  # no address
        return id(tensor)
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a format without dense storage
        return id(tensor)
    return address or id(tensor)


def _shared_arguments(op: Op, node: fx.Node) -> frozenset[str]:
    """Names of the arguments whose memory an output of the op may share."""
    if op.op in _IDENTITY and dict(op.attributes).get(_IDENTITY[op.op]) is False:
        return frozenset({"input"})
    if class_of(node.target) is not None:  # nobody knows, but the user
        return frozenset(operand.argument for operand in op.operands)
    if not isinstance(node.target, torch._ops.OpOverload):
        return frozenset()
    schema = node.target._schema
    returned: set[str] = set()
    for result in schema.returns:
        if result.alias_info is not None:
            returned |= set(result.alias_info.before_set) | set(result.alias_info.after_set)
    shared = set()
    for argument in schema.arguments:
        info = argument.alias_info
        if info is not None and (set(info.before_set) | set(info.after_set)) & returned:
            shared.add(argument.name)
    return frozenset(shared)


class _Union:
    """Disjoint sets over value names."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def root(self, value: str) -> str:
        parent = self._parent.setdefault(value, value)
        while parent != self._parent[parent]:
            self._parent[parent] = self._parent[self._parent[parent]]
            parent = self._parent[parent]
        self._parent[value] = parent
        return parent

    def join(self, left: str, right: str) -> None:
        self._parent[self.root(right)] = self.root(left)
