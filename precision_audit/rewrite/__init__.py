"""Rewrite: a captured graph and a plan become the converted module.

Takes `Captured` and `Plan` per mode; gives `Converted`. Decides nothing: every cast, fold and swap is in the plan, and
every new node carries the decision behind it. The captured graph and its parameters are never changed.

What must hold: same output structure, formats and shapes; same state-dict keys; integers are never cast; a value that
is updated in place is cast after the update that its reader sees; a plan with everything high gives back the captured
graph bit for bit.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from precision_audit import backends, ops
from precision_audit.capture import Captured
from precision_audit.capture.aliases import written_parameters
from precision_audit.capture.graph import named_arguments
from precision_audit.capture.regions import outputs_of
from precision_audit.formats import dtype_of
from precision_audit.records import Cast, Fold, Mode, Op, Plan
from precision_audit.rewrite import swapping
from precision_audit.rewrite.converted import Converted, side
from precision_audit.rewrite.literals import reformat
from precision_audit.rewrite.state import cloned_state, copy_paths, low_copies


def rewrite(
    captures: Mapping[Mode, Captured],
    plans: Mapping[Mode, Plan],
    *,
    share_parameters: bool = False,
    signature: inspect.Signature | None = None,
    missing: str = "",
    build: swapping.Build | None = None,
    as_written: bool = False,
) -> Converted:
    """The converted module over both captured modes (or the one there is). `build` makes swapped modules instead of
    their backends; `as_written` keeps numbers beyond the low range, as a cast of the model does."""
    folds = [each for plan in plans.values() for each in plan.folds]
    state = cloned_state([captured.root for captured in captures.values()], share_parameters, folds)
    paths = copy_paths(state.module, folds, {swap.module for plan in plans.values() for swap in plan.swaps})
    at = swapping.places(state.module, plans.values())
    sides, copies = {}, {}
    for (mode, captured), renamed in zip(captures.items(), state.renamed, strict=True):
        plan = plans[mode]
        graph, nodes = _copied(captured, renamed)
        _Rewriter(captured, plan, graph, nodes, paths, at).apply(as_written)
        copies.update(low_copies(state.module, plan.folds, paths))
        swapping.put_modules(state.module, plan, at, build)
        graph.lint()
        made = side(graph, captured.in_spec, captured.out_spec)
        sides[mode] = replace(made, run=backends.around(made.run, plan))
    converted = Converted(state.module, sides, plans, signature, missing)
    converted.copies, converted.spelled = copies, dict(captured.spelled)  # the same in both modes
    converted.written = frozenset().union(*(written_parameters(each.graph) for each in captures.values()))
    return converted


def unchanged(
    captures: Mapping[Mode, Captured], *, signature: inspect.Signature | None = None, missing: str = ""
) -> Converted:
    """The captured graphs as a module of their own, nothing converted: the reference of every comparison."""
    empty = {mode: Plan("", mode, "", "", (), ()) for mode in captures}
    return rewrite(captures, empty, signature=signature, missing=missing)


def _copied(captured: Captured, renamed: Mapping[str, str]) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """A copy of the captured graph, and its nodes by op key."""
    graph, mapping = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(captured.root.graph, mapping))
    nodes = {key: mapping[node] for key, node in captured.nodes.items()}
    for key, node in nodes.items():
        node.meta["op_key"] = key
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            node.target = renamed.get(str(node.target), node.target)
    return graph, nodes


class _Rewriter:
    """Applies one plan to one copied graph."""

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        graph: fx.Graph,
        nodes: Mapping[str, fx.Node],
        paths: Mapping[tuple[str, str], str],
        at: Mapping[tuple[str, str], str],
    ) -> None:
        self._plan, self._graph, self._nodes, self._at = plan, graph, dict(nodes), at
        self._paths = paths  # of the low copies of parameters
        self._ops = {op.key: op for op in captured.graph.ops}
        self._formats = dict(plan.formats)
        self._mutated = {value for members in captured.graph.aliases for value in members}
        self._position = {node: i for i, node in enumerate(graph.nodes)}
        self._outputs = captured.graph.outputs
        self._prologue = self._last_input()
        self._fakes = _Fakes()

    def apply(self, as_written: bool) -> None:
        for key, op in self._ops.items():
            chosen = self._formats.get(key)
            if chosen is not None:
                reformat(self._nodes[key], op, chosen, self._plan.high, as_written)
        for fold_ in self._plan.folds:
            self._fold(fold_)
        for cast in self._plan.casts:
            self._cast(cast)
        for swap in self._plan.swaps:
            changed = swapping.call(self._graph, self._nodes, self._position, swap, self._at[swap.module, swap.kind])
            self._nodes.update(changed)
        for key in self._plan.autocast:
            self._wrap(self._nodes[key])
        self._describe()

    def _last_input(self) -> fx.Node:
        """The node after which casts of inputs and parameters are put: the last input or state node at the top."""
        last: fx.Node = next(iter(self._graph.nodes))
        for node in self._graph.nodes:
            if node.op not in ("placeholder", "get_attr"):
                return last
            last = node
        return last

    # casts ---------------------------------------------------------------------------------------------------------

    def _cast(self, cast: Cast) -> None:
        sources = self._value_nodes(cast.value)
        after = self._after(sources[0])
        # A value that is written in place is cast after the write that its readers see. Autocast casts when an op is
        # called, and gradients are summed in the order of the casts.
        if cast.value in self._mutated or (self._plan.autocast_device and sources[0].op != "get_attr"):
            readers = [self._reader(consumer) for consumer in cast.consumers]
            after = min(readers, key=self._position.__getitem__).prev
        self._connect(cast.consumers, sources, self._new_cast(cast, sources[0], after))

    def _new_cast(self, cast: Cast, source: fx.Node, after: fx.Node) -> fx.Node:
        with self._graph.inserting_after(after):
            node = self._graph.call_function(torch.ops.aten.to.dtype, (source, dtype_of(cast.to)))
        for name in ("nn_module_stack", "stack_trace", "region"):
            if name in source.meta:
                node.meta[name] = source.meta[name]
        node.meta["decision"] = f"cast to {cast.to} for {', '.join(cast.consumers[:3])}"
        node.meta["cast"] = cast
        return node

    def _after(self, source: fx.Node) -> fx.Node:
        if source.op in ("placeholder", "get_attr") and source in self._position:
            return self._prologue if self._position[source] <= self._position[self._prologue] else source
        return source

    def _connect(self, consumers: tuple[str, ...], sources: list[fx.Node], replacement: fx.Node) -> None:
        mapping = dict.fromkeys(sources, replacement)
        for consumer in consumers:
            if consumer.startswith("output:"):
                self._replace_output(int(consumer.removeprefix("output:")), replacement)
            else:
                self._replace_operands(self._ops[consumer], mapping)

    def _replace_operands(self, op: Op, mapping: Mapping[fx.Node, fx.Node]) -> None:
        node = self._nodes[op.key]
        count = len(node.args)
        arguments = []
        for name, argument in named_arguments(node):
            cast_here = ops.role(op, name, "") not in ("stays", "any")
            arguments.append(fx.map_arg(argument, lambda n: mapping.get(n, n)) if cast_here else argument)
        node.args = tuple(arguments[:count])
        node.kwargs = dict(zip(node.kwargs, arguments[count:], strict=True))

    def _replace_output(self, index: int, replacement: fx.Node) -> None:
        leaves = list(outputs_of(self._graph))
        leaves[index] = replacement
        self._graph.output_node().args = (tuple(leaves),)

    def _value_nodes(self, value: str) -> list[fx.Node]:
        """Nodes that stand for a value: the op's own, or the `getitem`s that read one of several outputs."""
        if value in self._nodes:
            node = self._nodes[value]
            op = self._ops[value]
            if len(op.outputs) == 1 and isinstance(node.meta.get("val"), (tuple, list)):
                return [user for user in node.users if user.target is operator.getitem]
            return [node]
        key, _, index = value.rpartition(":")
        found = [u for u in self._nodes[key].users if u.target is operator.getitem and u.args[1] == int(index)]
        return sorted(found, key=lambda n: self._position.get(n, 0))

    def _reader(self, consumer: str) -> fx.Node:
        if consumer.startswith("output:"):
            return self._graph.output_node()
        return self._nodes[consumer]

    # folds, swaps, regions -----------------------------------------------------------------------------------------

    def _fold(self, each: Fold) -> None:
        """Low readers of a parameter that is kept in both formats read its low copy; otherwise nothing to connect."""
        if not each.copy:
            return
        original = self._nodes[each.value]
        with self._graph.inserting_after(original):
            copy = self._graph.get_attr(self._paths[each.value, each.to])
        copy.meta["decision"] = f"stored in {each.to} beside the original"
        copy.meta["cast"] = each
        self._connect(each.consumers, [original], copy)

    def _wrap(self, node: fx.Node) -> None:
        """Run a composite op inside an autocast region, so that its inner ops are autocast as they are in eager."""
        low = dtype_of(self._plan.low)
        with self._graph.inserting_before(node):
            enter = self._graph.call_function(
                torch.amp.autocast_mode._enter_autocast, (self._plan.autocast_device, low, True, True)
            )
        with self._graph.inserting_after(node):
            self._graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))

    # what the nodes say --------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Give every node the `val` it now has: the captured one in the format the plan chose."""
        for node in self._graph.nodes:
            if "cast" in node.meta:
                source = node.args[0] if node.args else self._nodes[node.meta["cast"].value]
                node.meta["val"] = self._fakes.like(source.meta.get("val"), node.meta["cast"].to)
            elif node.meta.get("op_key") in self._formats:
                self._describe_op(node)
        for each in self._plan.folds:
            if not each.copy:
                node = self._nodes[each.value]
                node.meta["val"] = self._fakes.like(node.meta.get("val"), each.to)

    def _describe_op(self, node: fx.Node) -> None:
        key = node.meta["op_key"]
        chosen, op = self._formats[key], self._ops[key]
        value = node.meta.get("val")
        if isinstance(value, (tuple, list)):
            formats = [_new_format(tensor.format, chosen, self._plan.high) for tensor in op.outputs]
            node.meta["val"] = type(value)(self._fakes.like(v, f) for v, f in zip(value, formats, strict=True))
            for user in node.users:
                if user.target is operator.getitem:
                    user.meta["val"] = node.meta["val"][user.args[1]]
        else:
            node.meta["val"] = self._fakes.like(value, _new_format(op.outputs[0].format, chosen, self._plan.high))


def _new_format(captured: str, chosen: str, high: str) -> str:
    """Only outputs that were captured in the high format change."""
    return chosen if captured == high else captured


class _Fakes:
    """Fake tensors in other formats. A model repeats its shapes, so they are made once for each."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], torch.Tensor] = {}

    def like(self, value: Any, name: str) -> Any:
        """A fake tensor like `value` in the format `name`; everything that is no float tensor as it is."""
        if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
            return _in_format(value, name)
        if torch._C._functorch.is_batchedtensor(value) or value.layout != torch.strided:
            return value
        key = (
            id(getattr(value, "fake_mode", None)),
            value.shape,
            value.stride(),
            value.dtype,
            value.requires_grad,
            name,
        )
        if key not in self._made:
            self._made[key] = _in_format(value, name)
        return self._made[key]


def _in_format(value: Any, name: str) -> Any:
    """A fake tensor like `value` in another format; everything that is no float tensor as it is."""
    if not isinstance(value, torch.Tensor) or not name or not value.is_floating_point():
        return value
    if torch._C._functorch.is_batchedtensor(value):  # of a vmap that has ended: nothing can be computed with it
        return value
    low = dtype_of(name)
    if value.dtype == low:
        return value
    mode = getattr(value, "fake_mode", None)
    if mode is None:
        return value.detach().to(device="meta", dtype=low)
    with mode, torch.no_grad():
        return value.to(low)
