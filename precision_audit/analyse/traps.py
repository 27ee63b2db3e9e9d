"""What raises when the model is converted in the usual way: `model.to(low)` with its inputs, or under torch.autocast.

Takes a capture, policy and device; gives one `Trap` per op that raises there, with the error's own words. Formats are
carried through the captured graph as PyTorch would make them (`carried`), on tensors without memory:

    cast       float inputs, parameters and buffers low; a format or limit that follows the example low; what the user
               wrote (torch.float32, .float(), zeros() in the default format, a tensor kept as a plain attribute) as
               written; promotion is PyTorch's own
    autocast   everything as captured, each op in a torch.autocast region on the policy's device

The way judged is autocast under `amp-*` policies, else the cast. Whether an op raises on what reaches it is found by
running it on small stand-ins (`probing`) where formats mix, where the table knows no low kernel or where a number does
not fit; of kernels of a device that is not here the table's word is taken. After a trap the walk goes on as though it
had been mended, so that one cause is told once.

What it cannot see: what the user's Python does with a format (`if x.dtype == …`), the hand-written backward of an
autograd function (export writes its forward out), ops whose sizes depend on data, ops outside aten and inside
functorch's transforms. Where a format cannot be known (it comes from such an op or such a function, or under autocast
from a tensor that may be in either) an op is told of only if it raises in both cases. Never runs the model, never reads
a weight.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils import _pytree as pytree

from precision_audit import ops
from precision_audit.analyse.branches import branches
from precision_audit.analyse.carried import Carried, tensors
from precision_audit.autocast.dry_run import region, silenced
from precision_audit.autocast.effect import table_effect
from precision_audit.autocast.probing import NOWHERE, Region, raised
from precision_audit.capture import Captured
from precision_audit.capture.origins import TAKEN_AS_WRITTEN
from precision_audit.formats import dtype_of, format_of
from precision_audit.records import Hardware, Op, Policy, Trap, first_line

_MOVES = ("view_layout", "control", "cast")  # look at no format, or convert it themselves
_UNKNOWN = "?"  # whether there is a kernel


def traps(captured: Captured, policy: Policy, hardware: Hardware) -> tuple[Trap, ...]:
    """One record per op that raises, in graph order."""
    if policy.low == policy.high:
        return ()
    walk = _Walk(captured, policy, policy.autocast or hardware.kernels)
    with torch.no_grad(), silenced(), FakeTensorMode():
        unread = "" if policy.autocast else _unread(captured)
        return tuple(_first(walk, unread) if unread else walk.run())


def _unread(captured: Captured) -> str:
    """The note that tells why no literal is known to follow the example, "" where all is known."""
    return next((note for note in captured.graph.notes if note.startswith(TAKEN_AS_WRITTEN)), "")


def _first(walk: _Walk, unread: str) -> Iterator[Trap]:
    """Where the model raises in fp64 for the same reason, in the same words, it is that op and no doubt is left; of all
    that comes after it nothing is known."""
    for trap in walk.run():
        said = walk.raised_in(torch.float64)
        if said and f"({first_line(said, 160)})" in unread:
            yield trap
            return


class _Walk:
    """One pass over the graph."""

    def __init__(self, captured: Captured, policy: Policy, kernels: str) -> None:
        self._graph, self._training = captured.root.graph, captured.graph.mode == "training"
        self._ops = {node: op for op in captured.graph.ops if (node := captured.nodes.get(op.key)) is not None}
        self._autocast, self._kernels = policy.autocast, kernels
        self._low, self._name = dtype_of(policy.low), policy.low
        self._values = Carried(captured, self._low, policy.autocast)
        self._asking = {(each.file, each.function) for each in branches(captured, policy.high, policy.low)}

    def run(self) -> Iterator[Trap]:
        values = self._values
        for node in self._graph.nodes:
            if node.op == "output":
                return
            values.was[node] = values.as_captured(node)
            if node.op in ("placeholder", "get_attr"):
                values.now[node] = values.given(node)
            elif node.target is operator.getitem:
                values.now[node] = values.member(node)
            elif node not in self._ops:
                values.now[node] = values.was[node]
            elif not self._can_run(node):
                values.now[node] = values.mended(node, self._ops[node])
                values.unsure.add(node)
            else:
                yield from self._step(node, self._ops[node])

    def raised_in(self, kind: torch.dtype) -> str:
        """What the op of the last trap says, without memory, if `kind` takes the low format's place."""
        node, around = self._last

        def replaced(leaf: Tensor) -> Tensor:
            return self._values.fake(leaf, kind) if leaf.dtype is self._low else leaf

        asked = self._values.arguments(node, self._ops[node], self._values.now)
        return _try(node, pytree.tree_map_only(Tensor, replaced, asked), around)[1]

    def _can_run(self, node: fx.Node) -> bool:
        """Whether the op can be tried: one of aten's, outside functorch's transforms."""
        op = self._ops[node]
        transform = op.fixed == "region" and not op.region
        return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten" and not transform

    def _step(self, node: fx.Node, op: Op) -> Iterator[Trap]:
        values, around = self._values, self._region(op)
        asked, was = values.arguments(node, op, values.now), values.arguments(node, op, values.was)
        self._mark(node, op)
        made, refused = _try(node, asked, around)
        text = self._raises(node, op, asked, was, around, refused)
        if text and any(read in values.unsure for read in node.all_input_nodes):
            other = values.arguments(node, op, values.if_low(node))
            text = self._raises(node, op, other, was, around, _try(node, other, around)[1]) and text
        values.now[node] = values.mended(node, op) if made is None or text else made
        if text:
            self._last = node, around
            formats = tuple(map(format_of, _kinds(asked)))
            yield Trap(op.key, "autocast" if self._autocast else "cast", text, formats)

    def _raises(self, node: fx.Node, op: Op, asked: Any, was: Any, around: Region, refused: str) -> str:
        """The error on these formats, "" if there is none or none is certain."""
        if op.kind in _MOVES or (op.follows and self._autocast):
            return ""
        if refused and _try(node, was, NOWHERE)[0] is None:
            refused = ""  # cannot be run without data at all
        kinds = set(_kinds(asked))
        mixed, lacking = len(kinds) > 1, self._lacks(op, kinds, around)
        strange = torch.complex32 in kinds or self._overflows(op, asked)
        inside = bool(around.low) and op.kind == "rnn"  # autocast acts between its own parts
        if not (refused or mixed or lacking or strange or inside):
            return self._backward(node, op, asked, was, around)
        if around.device == "cuda" and around.low:
            return self._on_cuda(node, op, asked, was, mixed)
        if self._kernels != "cpu" and not mixed and not strange:
            there = ops.has_kernel(op.op, self._name, self._kernels, backward=False)
            return "" if there else refused or lacking  # what is refused here need not be there
        with unset_fake_temporarily():
            found = raised(node.target, asked, was, around)
        return (refused or lacking.removeprefix(_UNKNOWN)) if found is None else found

    def _on_cuda(self, node: fx.Node, op: Op, asked: Any, was: Any, mixed: bool) -> str:
        """Under autocast of a device that is not here: only ops that autocast leaves alone, as they run without it."""
        effect = table_effect(op, "cuda")
        if effect.policy or effect.inner or effect.untouched or not mixed:
            return ""
        with unset_fake_temporarily():
            return raised(node.target, asked, was) or ""

    def _backward(self, node: fx.Node, op: Op, asked: Any, was: Any, around: Region) -> str:
        """The error of a gradient kernel that the device lacks."""
        trained = self._training and any(tensor.requires_grad for tensor in op.outputs)
        if not trained or around.low or self._low not in _kinds(asked):
            return ""
        if ops.has_kernel(op.op, self._name, self._kernels, backward=True) is not False:
            return ""
        if self._kernels == "cuda":
            return f"no {self._name} backward kernel of {op.op} on cuda"
        with unset_fake_temporarily():
            return raised(node.target, asked, was, around, backward=True) or ""

    def _lacks(self, op: Op, kinds: set[torch.dtype], around: Region) -> str:
        """What the table says of a kernel for floats that are all low; "" where it knows one."""
        if kinds != {self._low} or around.low:
            return ""
        known = ops.has_kernel(op.op, self._name, self._kernels, backward=False)
        if known is None:  # here it can be tried
            return _UNKNOWN if self._kernels == "cpu" else ""
        return "" if known else f"no {self._name} kernel of {op.op} on {self._kernels}"

    def _overflows(self, op: Op, asked: Any) -> bool:
        """Whether a number is written into it that the low format cannot hold."""
        limit = torch.finfo(self._low).max
        numbers = [abs(leaf) for leaf in pytree.tree_leaves(asked) if isinstance(leaf, float)]
        low = self._low in _kinds(asked) or op.kind == "factory"
        return low and any(limit < number < float("inf") for number in numbers)

    def _region(self, op: Op) -> Region:
        """The autocast region around the op: the user's own comes before the one that is judged."""
        if op.region:
            _, device, low = op.region.split()
            if device == (self._autocast or "cpu"):
                return Region(device, "" if low == "off" else low)
        return Region(self._autocast, self._name) if self._autocast else NOWHERE

    def _mark(self, node: fx.Node, op: Op) -> None:
        """Where a format is not known, that of what is made of it is not either, until a cast. Not known is what a
        function makes that asks for a format, and under autocast one read from a tensor, which may be in either."""
        asking = op.source is not None and (op.source.file, op.source.function) in self._asking
        hangs = (
            asking
            or bool(op.follows and self._autocast)
            or any(read in self._values.unsure for read in node.all_input_nodes)
        )
        casts = self._autocast and table_effect(op, self._autocast).policy in ("low", "fp32", "fp32-out")
        if hangs and not casts and op.fixed != "explicit cast":
            self._values.unsure.add(node)


def _try(node: fx.Node, call: Any, around: Region) -> tuple[Any, str]:
    """What the op gives of these formats, without memory; None and the error where it gives nothing."""
    assert callable(node.target)
    try:
        with region(around.device, around.low):
            return node.target(*call[0], **call[1]), ""
    except Exception as error:  # whatever it raises is the answer
        return None, first_line(error)


def _kinds(call: Any) -> list[torch.dtype]:
    """The formats of all operands that have a fraction."""
    return [leaf.dtype for leaf in tensors(call) if leaf.is_floating_point() or leaf.is_complex()]
