"""Formats carried through a captured graph as one of the usual conversions would make them.

Takes a capture, the low format and the device of torch.autocast ("" for `model.to(low)`); holds what each node gives in
the converted model (`now`) and in the captured one (`was`), on tensors without memory at the example's sizes, and which
formats are not known (`unsure`). Whoever walks the graph asks for arguments and writes down what ops give. Knows no
kernel and raises nothing of an op's.

`model.to` converts float inputs, parameters and buffers; a tensor that is a plain attribute stays. A format or a
format's limit that follows the example becomes the low one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from precision_audit.capture import Captured
from precision_audit.capture.names import example_size
from precision_audit.records import Op

Values = dict[fx.Node, Any]

_LIMITS = {torch.finfo(kind).max / part for kind in (torch.float32, torch.float64) for part in (1, 2)}


class Carried:
    """What each node gives, in both models. To be used inside a FakeTensorMode."""

    def __init__(self, captured: Captured, low: torch.dtype, autocast: str) -> None:
        self._root, self._low, self._autocast = captured.root, low, autocast
        self._limit = torch.finfo(low).max
        made = (op for op in captured.graph.ops if op.kind == "constant" and op.follows)  # tensor(…, dtype=x.dtype)
        self._made_alike = {captured.nodes[op.key] for op in made}
        self.now: Values = {}
        self.was: Values = {}
        self.unsure: set[fx.Node] = set()

    # values that nothing computes -------------------------------------------------------------------------------------

    def as_captured(self, node: fx.Node) -> Any:
        """The node's value as captured, without memory."""

        def plain(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return self.fake(leaf, leaf.dtype)
            return _size(leaf) if isinstance(leaf, torch.SymInt) else leaf

        value = node.meta.get("val")
        if value is None and node.op == "get_attr":
            value = _attribute(self._root, str(node.target))
        return pytree.tree_map(plain, value)

    def given(self, node: fx.Node) -> Any:
        """An input or a piece of state in the converted model."""
        made = node.op == "get_attr" and not self._is_state(str(node.target))
        stays = bool(self._autocast) or (made and node not in self._made_alike)
        was = self.was[node]
        return was if stays or not is_float(was) else self.fake(was, self._low)

    def member(self, node: fx.Node) -> Any:
        """One output of several."""
        source, index = node.args
        assert isinstance(source, fx.Node)
        if source in self.unsure:
            self.unsure.add(node)
        try:
            return self.now[source][index]
        except (TypeError, IndexError, KeyError):
            return self.was[node]

    def fake(self, like: Tensor, kind: torch.dtype) -> Tensor:
        """A tensor without memory, on the device of the conversion."""
        shape, stride = [_size(n) for n in like.shape], [_size(n) for n in like.stride()]
        return torch.empty_strided(shape, stride, dtype=kind, device=self._autocast or "cpu")

    def _is_state(self, path: str) -> bool:
        """Whether `model.to` converts it: parameters and buffers, saved or not."""
        owner, _, name = path.rpartition(".")
        module = self._root.get_submodule(owner)
        return name in module._parameters or name in module._buffers

    # what ops read and give -------------------------------------------------------------------------------------------

    def arguments(self, node: fx.Node, op: Op, values: Mapping[fx.Node, Any]) -> Any:
        """The node's arguments out of `values`; literals that follow the example follow the low format."""
        converted = values is not self.was
        follows = converted and op.follows and not self._autocast

        def literal(leaf: Any) -> Any:
            if isinstance(leaf, torch.dtype) and leaf.is_floating_point and follows:
                return self._low
            if isinstance(leaf, float) and follows and abs(leaf) in _LIMITS:
                return self._limit if leaf > 0 else -self._limit
            if isinstance(leaf, torch.device) and self._autocast:
                return torch.device(self._autocast)
            return leaf

        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda read: values[read])
        args, kwargs = pytree.tree_map(literal, (args, kwargs))
        return (self._fitting(node, args) if converted and op.op == "index_put" else args), kwargs

    def if_low(self, node: fx.Node) -> Values:
        """What the node reads if everything unsure is low."""

        def low(leaf: Tensor) -> Tensor:
            return self.fake(leaf, self._low) if leaf.is_floating_point() else leaf

        return {
            read: pytree.tree_map_only(Tensor, low, self.now[read]) if read in self.unsure else self.now[read]
            for read in node.all_input_nodes
        }

    def mended(self, node: fx.Node, op: Op) -> Any:
        """What the op gives once it no longer raises: floats low, or in the format of what is written to."""
        reads = node.all_input_nodes
        kind = self._low if any(leaf.dtype is self._low for read in reads for leaf in tensors(self.now[read])) else None
        if op.mutates and reads and is_float(self.now[reads[0]]):
            kind = self.now[reads[0]].dtype

        def changed(leaf: Tensor) -> Tensor:
            return self.fake(leaf, kind) if kind is not None and leaf.is_floating_point() else leaf

        return pytree.tree_map_only(Tensor, changed, self.was[node])

    def _fitting(self, node: fx.Node, args: Any) -> Any:
        """`x[i] = 0.0` is captured as a tensor in the example's format; Python makes it in that of `x`."""
        source = node.args[2]
        number = isinstance(source, fx.Node) and source.target is torch.ops.aten.lift_fresh_copy.default
        if number and is_float(args[0]) and is_float(args[2]) and args[2].dim() == 0:
            return (*args[:2], self.fake(args[2], args[0].dtype), *args[3:])
        return args


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a nest."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def is_float(value: Any) -> bool:
    """Whether it is a tensor of floats."""
    return isinstance(value, Tensor) and value.is_floating_point()


def _size(size: int | torch.SymInt) -> int:
    return example_size(size) if isinstance(size, torch.SymInt) else int(size)


def _attribute(root: fx.GraphModule, path: str) -> Any:
    value: Any = root
    for part in path.split("."):
        value = getattr(value, part)
    return value
