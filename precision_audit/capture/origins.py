"""Whose format is it: literals that follow the example, and literals that are the user's own.

Takes a captured graph and a second capture of the same model after `.double()`; gives the nodes whose format argument
or float literal changed with it. Those follow the format that is chosen for the op; all others are kept as written.
Never guesses: where the two captures differ in structure, nothing follows and the note says so.

A cast that changes nothing gives back its input itself, so that after `y = x.float()` a capture in fp32 reads y
wherever the code says x. In fp64 that cast is none of these, so the second capture tells who reads what.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from precision_audit.records import first_line

# Literals that code writes as torch.finfo(x.dtype).min and the like.
LIMITS = frozenset(
    value
    for kind in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    for info in (torch.finfo(kind),)
    for value in (info.max, info.min, info.eps, info.tiny, info.smallest_normal, info.max / 2, info.min / 2)
)

TAKEN_AS_WRITTEN = "formats are taken as written"  # begins every note that says no literal is known to follow


def has_literals(root: fx.GraphModule) -> bool:
    """Whether a second capture can tell anything: some op holds a float format or a format's limit as a literal, or a
    tensor was made in forward."""
    return any(_is_literal(leaf) for node in root.graph.nodes for leaf in _leaves(node)) or any(
        _is_made(root, node) for node in root.graph.nodes
    )


def _is_made(root: fx.GraphModule, node: fx.Node) -> bool:
    """Whether the node reads a float tensor that is neither a parameter nor a buffer."""
    if node.op != "get_attr" or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    owner, _, name = str(node.target).rpartition(".")
    module = root.get_submodule(owner)
    state = name in module._parameters or name in module._buffers
    return not state and bool(node.meta["val"].is_floating_point())


def as_double(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """`model.double()` and its inputs as fake tensors; the originals are neither copied nor changed."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        kind = torch.float64 if tensor.is_floating_point() else tensor.dtype
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=tensor.device)

    return _faked(model, args, kwargs, widen)


def as_fake(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A model on the meta device and its inputs as fake CPU tensors: meta itself would leave `device="meta"` in the
    graph."""

    def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")

    return _faked(model, args, kwargs, on_cpu)


def has_weights(model: Any) -> bool:
    """Whether there are numbers behind all parameters and buffers of a module or an exported program."""
    state = [*model.parameters(), *model.buffers()]
    return not any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in state)


def _faked(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    twin: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A copy of `model` in which every tensor is the fake `twin` of its own; inputs likewise."""
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

    def faked(tensor: torch.Tensor) -> torch.Tensor:
        with fake:
            return twin(tensor)

    memo: dict[int, Any] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in memo:
                memo[id(parameter)] = nn.Parameter(faked(parameter), parameter.requires_grad)
        for buffer in module._buffers.values():
            if buffer is not None and id(buffer) not in memo:
                memo[id(buffer)] = faked(buffer)
    # `memo` keeps deepcopy from copying the real tensors: each reference becomes its fake twin.
    copied = copy.deepcopy(model, memo)
    inputs = pytree.tree_map_only(torch.Tensor, faked, (args, dict(kwargs)))
    return copied, inputs[0], inputs[1]


def following(root: fx.GraphModule, double: Callable[[], fx.Graph], notes: list[str]) -> frozenset[fx.Node]:
    """Nodes of `root` whose literals changed in the capture that `double` makes."""
    try:
        other = double()
    except Exception as error:
        notes.append(f"{TAKEN_AS_WRITTEN}: the model does not run in fp64 ({first_line(error, 160)})")
        return frozenset()
    ours, theirs = list(root.graph.nodes), list(other.nodes)
    if [_shape_of(node) for node in ours] != [_shape_of(node) for node in theirs]:
        notes.append(f"{TAKEN_AS_WRITTEN}: the model takes another path in fp64 (it asks for x.dtype)")
        return frozenset()
    _reconnect(ours, theirs)
    return frozenset(
        mine
        for mine, twin in zip(ours, theirs, strict=True)
        if _literals(mine) != _literals(twin) or (_is_made(root, mine) and _kind(mine) != _kind(twin))
    )


def _kind(node: fx.Node) -> torch.dtype:
    kind: torch.dtype = node.meta["val"].dtype
    return kind


def _reconnect(ours: Sequence[fx.Node], theirs: Sequence[fx.Node]) -> None:
    """Readers of an idle cast that read its input in the other capture, where the cast is not idle, read that."""
    mine = dict(zip(theirs, ours, strict=True))
    idle = {node for node, twin in zip(ours, theirs, strict=True) if _is_idle_cast(node) and not _is_idle_cast(twin)}
    if not idle:
        return
    for node, twin in zip(ours, theirs, strict=True):
        leaves, spec = pytree.tree_flatten((node.args, dict(node.kwargs)))
        others = pytree.tree_leaves((twin.args, dict(twin.kwargs)))
        if len(leaves) != len(others):
            continue
        meant = [
            mine[other] if isinstance(other, fx.Node) and _casts(leaf, mine[other], idle) else leaf
            for leaf, other in zip(leaves, others, strict=True)
        ]
        if any(new is not old for new, old in zip(meant, leaves, strict=True)):
            node.args, node.kwargs = pytree.tree_unflatten(meant, spec)


def _casts(leaf: Any, source: fx.Node, idle: set[fx.Node]) -> bool:
    """Whether `leaf` is nothing but `source` after idle casts."""
    while leaf in idle:
        leaf = leaf.args[0]
        if leaf is source:
            return True
    return False


def _is_idle_cast(node: fx.Node) -> bool:
    """A cast whose result has the format of its input, and hence is its input."""
    if node.op != "call_function" or getattr(node.target, "overloadpacket", None) is not torch.ops.aten.to:
        return False
    source = node.args[0]
    before = source.meta.get("val") if isinstance(source, fx.Node) else None
    after = node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return before.dtype == after.dtype and before.device == after.device


def _shape_of(node: fx.Node) -> tuple[str, str]:
    return node.op, str(node.target) if node.op == "call_function" else ""


def _literals(node: fx.Node) -> list[Any]:
    return [leaf for leaf in _leaves(node) if _is_comparable(leaf)]


def _is_comparable(leaf: Any) -> bool:
    return isinstance(leaf, torch.dtype) or (isinstance(leaf, float) and not math.isnan(leaf))


def _leaves(node: fx.Node) -> list[Any]:
    if node.op != "call_function" or node.target is operator.getitem:
        return []
    return [leaf for leaf in pytree.tree_leaves((node.args, dict(node.kwargs))) if not isinstance(leaf, fx.Node)]


def _is_literal(leaf: Any) -> bool:
    if isinstance(leaf, torch.dtype):
        return leaf.is_floating_point
    return isinstance(leaf, float) and leaf in LIMITS
