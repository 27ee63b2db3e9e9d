"""The model wholly in the low format beside the captured one, op by op.

Takes a capture, policy, device and the example; gives one `Beside` per value: what each op adds by itself and how far
the error has grown by then, which elements are lost, which decisions changed, and which ops raise. This is what a plain
`.half()` or `.bfloat16()` does, seen from inside, so a hazard can name the op where it begins.

Both graphs run in lockstep, node by node, and a value is freed after its last reader: twice one batch's activations at
most. Each op that runs low is run a second time in the captured format on the same rounded inputs; the difference is
the op's own, and is handed over to whoever asks for `deltas` (`sensitivity.py`), that of a linear's fp8 product too.
Random ops get the same draw in all three. An op that raises is noted and its captured result taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from precision_audit import backends
from precision_audit.ambient import restored_on_error
from precision_audit.analyse.constants import cleared
from precision_audit.analyse.deltas import Deltas, swap_source
from precision_audit.capture import Captured
from precision_audit.formats import format_of
from precision_audit.plain import as_cast, everything_low, high_by_casts
from precision_audit.records import Beside, Hardware, Plan, Policy, Swap, first_line
from precision_audit.rewrite import rewrite, unchanged
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.runs import Batch, Conditions, without_trace


def beside(
    captured: Captured,
    policy: Policy,
    hardware: Hardware,
    batch: Batch,
    deltas: Deltas | None = None,
    kept: Collection[str] = frozenset(),
) -> tuple[Beside, ...]:
    """One record per value of a computed op, in graph order; each op's own error goes into `deltas`. The ops `kept` run
    high, and what `deltas` knows of them stays."""
    return _run(captured, everything_low(captured.graph, policy, hardware, kept), batch, deltas)


def beside_cast(captured: Captured, policy: Policy, hardware: Hardware, batch: Batch) -> tuple[Beside, ...]:
    """The same of the model as a cast of the module leaves it; nothing where the user has no cast of his own in it."""
    if not high_by_casts(captured.graph, policy.high):
        return ()
    return _run(captured, as_cast(captured.graph, policy, hardware), batch, None)


def _run(captured: Captured, plan: Plan | None, batch: Batch, deltas: Deltas | None) -> tuple[Beside, ...]:
    if plan is None:
        return ()
    mode = captured.graph.mode
    high, low = unchanged({mode: captured}), rewrite({mode: captured}, {mode: plan}, as_written=True)
    lockstep = _Lockstep(high, low, deltas)
    conditions = Conditions(training=False, draws=True, written=high.written)
    with (
        torch.no_grad(),
        restored_on_error(),
        without_trace(high, conditions),
        without_trace(low, conditions),
    ):
        args, kwargs = pytree.tree_map_only(Tensor, lambda value: value.detach().clone(), (batch[0], dict(batch[1])))
        lockstep.run(high.flatten(args, kwargs))
    return tuple(lockstep.found)


class _Lockstep:
    """Two graphs with the same nodes in the same order, but for the casts of the second."""

    def __init__(self, high: Converted, low: Converted, deltas: Deltas | None) -> None:
        self._modules, self._deltas = (high, low), deltas
        self._high: dict[fx.Node, Any] = {}
        self._low: dict[fx.Node, Any] = {}
        self._drift: dict[fx.Node, float] = {}  # of the low graph's nodes
        self._left = Counter[fx.Node]()  # readers still to come
        self.found: list[Beside] = []

    def run(self, inputs: list[Any]) -> None:
        high_nodes = iter(self._modules[0].graph.nodes)
        given = iter(inputs)
        for graph in (self._modules[0].graph, self._modules[1].graph):
            for node in graph.nodes:
                self._left[node] = len(node.users)
        for number, node in enumerate(self._modules[1].graph.nodes):
            if node.op == "output":
                self._finish(next(high_nodes), node)
                return
            if "cast" in node.meta:
                self._low[node] = self._call(node, 1, self._arguments(node, self._low), number)
                self._drift[node] = max((self._drift.get(n, 0.0) for n in node.all_input_nodes), default=0.0)
            else:
                self._pair(next(high_nodes), node, given, number)
            self._release(node, self._low)

    def _finish(self, high: fx.Node, low: fx.Node) -> None:
        """What the caller gets of an output that was written to since it was made: its record is of that."""
        known = {record.value: position for position, record in enumerate(self.found)}
        for one, other in zip(high.all_input_nodes, low.all_input_nodes, strict=False):
            key = one.meta.get("op_key")
            if key not in known or not isinstance(self._high.get(one), Tensor):
                continue
            before, made = self.found[known[key]], self._low[other]
            if not made.is_floating_point():
                continue
            drift, lost = _distance(self._high[one], made)
            if drift != before.drift or lost != before.lost:
                self.found[known[key]] = replace(before, drift=drift, lost=lost)

    def _pair(self, high: fx.Node, low: fx.Node, given: Any, number: int) -> None:
        if self._deltas is not None and "op_key" in low.meta:
            self._deltas.seeds[low.meta["op_key"]] = number
        if low.op == "placeholder":
            value = next(given)
            self._high[high] = value
            self._low[low] = value.clone() if isinstance(value, Tensor) else value
        elif low.op == "get_attr" or not _has_tensor(self._arguments(low, self._low)):
            self._high[high] = self._call(high, 0, self._arguments(high, self._high), number)
            shared = low.op != "get_attr" and "op_key" not in low.meta
            made = self._high[high] if shared else self._call(low, 1, self._arguments(low, self._low), number)
            self._low[low] = made
            self._compare(low, self._high[high], made, made, "")
        else:
            self._compute(high, low, number)
        self._release(high, self._high)

    def _compute(self, high: fx.Node, low: fx.Node, number: int) -> None:
        """The three runs of one op: captured, captured on the rounded inputs, low."""
        key = low.meta.get("op_key")
        arguments = self._arguments(low, self._low)
        if key is not None and self._deltas is not None:
            self._swapped(key, high, low)
            self._alternatives(key, high, low)
            self._deltas.decided(key, *self._first(high, low))
        widened = None
        if key is not None and _ran_low(low):
            rounded = pytree.tree_map_only(Tensor, Tensor.clone, _widened(high, low, self._high, self._low))
            try:
                widened = self._call(high, 0, rounded, number)
            except Exception:  # operands that no captured run would see
                widened = None
        expected = self._call(high, 0, self._arguments(high, self._high), number)
        raised = ""
        try:
            made = self._call(low, 1, arguments, number)
        except Exception as error:
            raised = first_line(error)
            made = pytree.tree_map_only(Tensor, Tensor.clone, expected)
        self._high[high], self._low[low] = expected, made
        self._compare(low, expected, made, made if widened is None else widened, raised)
        if key is not None and self._deltas is not None and _ran_low(low):
            self._hand_over(self._deltas, key, made, widened, raised)

    def _first(self, high: fx.Node, low: fx.Node) -> tuple[Any, Any]:
        """The first operand of a node in both models."""
        first, second = (node.args[0] if node.args else None for node in (high, low))
        if isinstance(first, fx.Node) and isinstance(second, fx.Node):
            return self._high[first], self._low[second]
        return None, None

    @staticmethod
    def _hand_over(deltas: Deltas, key: str, made: Any, widened: Any, raised: str) -> None:
        for value, (one, other) in _values(key, made, made if widened is None else widened).items():
            if raised or widened is None:
                deltas.failed.add(value)
            else:
                deltas.failed.discard(value)
                deltas.put(value, one, other)

    def _swapped(self, key: str, high: fx.Node, low: fx.Node) -> None:
        """The fp8 product of a linear that is to be swapped, against the captured one on the same rounded input."""
        assert self._deltas is not None
        swap = self._deltas.swaps.get(key)
        if swap is None:
            return
        (args, kwargs), (low_args, _) = self._arguments(high, self._high), self._arguments(low, self._low)
        given, weight, bias = low_args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias")
        try:
            made = fp8_product(swap, given, weight, bias)
        except Exception:  # a backend that only runs on its device
            self._deltas.failed.add(f"swap:{key}")
            return
        delta = self._deltas.difference(made, nn.functional.linear(given.to(weight.dtype), weight, bias))
        if delta is not None:
            self._deltas.swapped[key] = delta

    def _alternatives(self, key: str, high: fx.Node, low: fx.Node) -> None:
        """The product of a linear under every quantisation that a search may choose, on the same rounded input."""
        from precision_audit.quantise import product

        assert self._deltas is not None
        schemes = self._deltas.schemes.get(key, ())
        if not schemes:
            return
        (args, kwargs), (low_args, _) = self._arguments(high, self._high), self._arguments(low, self._low)
        given, weight, bias = low_args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias")
        expected = nn.functional.linear(given.to(weight.dtype), weight, bias)
        for scheme in schemes:
            try:
                made = product(given, weight, bias, scheme)
            except Exception:  # a shape that its blocks do not divide
                self._deltas.failed.add(swap_source(key, scheme))
                continue
            self._deltas.offer(key, scheme, made, expected)

    def _compare(self, node: fx.Node, expected: Any, made: Any, widened: Any, raised: str) -> None:
        drift_in = max((self._drift.get(n, 0.0) for n in node.all_input_nodes), default=0.0)
        key = node.meta.get("op_key")
        drifts = [drift_in]
        if key is not None:
            for value, (one, other, third) in _values(key, expected, made, widened).items():
                record = _record(value, one, other, third, drift_in, raised)
                drifts.append(record.drift)
                if node.op == "call_function":
                    self.found.append(record)
        self._drift[node] = max(drifts[1:], default=drift_in)

    def _call(self, node: fx.Node, which: int, arguments: tuple[Any, Any], number: int) -> Any:
        args, kwargs = arguments
        # The same draw for every run of this node; `Draws` seeds all devices from this one, `manual_seed` takes 2 ms.
        torch.default_generator.manual_seed(number)
        if node.op == "get_attr":
            value: Any = self._modules[which]
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return value
        if node.op == "call_module":
            return self._modules[which].get_submodule(str(node.target))(*args, **kwargs)
        assert callable(node.target)
        return cleared(node, node.target(*args, **kwargs))

    @staticmethod
    def _arguments(node: fx.Node, values: Mapping[fx.Node, Any]) -> tuple[Any, Any]:
        return fx.map_arg(node.args, values.__getitem__), fx.map_arg(node.kwargs, values.__getitem__)

    def _release(self, node: fx.Node, values: dict[fx.Node, Any]) -> None:
        for read in node.all_input_nodes:
            self._left[read] -= 1
            if not self._left[read]:
                values.pop(read, None)
        if not self._left[node]:
            values.pop(node, None)


def fp8_product(swap: Swap, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What the module that replaces a linear makes of `given`; it holds the weight and bias as captured."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    made: Tensor = backends.module_for(linear, swap)(given)
    return made


def _has_tensor(arguments: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(arguments))


def _ran_low(node: fx.Node) -> bool:
    """Whether any operand or result of the node is in another format than fp32 and fp64."""
    nodes = (node, *node.all_input_nodes)
    leaves = pytree.tree_leaves([each.meta.get("val") for each in nodes])
    return any(isinstance(v, Tensor) and v.dtype in (torch.bfloat16, torch.float16) for v in leaves)


def _widened(
    high: fx.Node, low: fx.Node, exact: Mapping[fx.Node, Any], values: Mapping[fx.Node, Any]
) -> tuple[Any, Any]:
    """The captured node's arguments, its tensors replaced by those of the low node in the captured format. A tensor
    that stands for a format only (`x.type_as(y)`) is none in the low node and stays."""

    def merged(captured: Any, rounded: Any) -> Any:
        if isinstance(captured, fx.Node):
            value = values[rounded] if isinstance(rounded, fx.Node) else exact[captured]
            was = captured.meta.get("val")
            if isinstance(value, Tensor) and isinstance(was, Tensor) and value.is_floating_point():
                return value.to(was.dtype)
            return value
        if isinstance(captured, list | tuple):
            return type(captured)(merged(one, other) for one, other in zip(captured, rounded, strict=True))
        return captured

    args = tuple(merged(one, other) for one, other in zip(high.args, low.args, strict=True))
    return args, {name: merged(value, low.kwargs[name]) for name, value in high.kwargs.items()}


def _values(key: str, *results: Any) -> dict[str, tuple[Tensor, ...]]:
    """The tensors of one op by value; output i of several is `key:i`."""
    if isinstance(results[0], Tensor):
        return {key: results}
    if not isinstance(results[0], tuple | list):
        return {}
    rows = [row for row in zip(*results, strict=True)]
    if len(rows) == 1:
        return {key: rows[0]} if isinstance(rows[0][0], Tensor) else {}
    return {f"{key}:{i}": row for i, row in enumerate(rows) if isinstance(row[0], Tensor)}


def _record(value: str, expected: Tensor, made: Tensor, widened: Tensor, drift_in: float, raised: str) -> Beside:
    name = format_of(made.dtype)
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(expected)
    if wrapped or expected.shape != made.shape or expected.layout != torch.strided:
        return Beside(value, name, drift_in=drift_in, drift=drift_in, raised=raised)
    if not expected.is_floating_point():
        if expected.is_complex():
            drift, _ = _distance(torch.view_as_real(expected.resolve_conj()), torch.view_as_real(made.resolve_conj()))
            return Beside(value, name, drift=drift, drift_in=drift_in, raised=raised)
        changed = float((expected != made).double().mean()) if expected.numel() else 0.0
        return Beside(value, name, drift_in=drift_in, changed=changed, raised=raised)
    fresh, fresh_lost = _distance(widened, made)
    drift, lost = _distance(expected, made)
    return Beside(value, name, fresh, drift, drift_in, 0.0, lost, fresh_lost, raised)


def _distance(expected: Tensor, made: Tensor) -> tuple[float, int]:
    """Relative L2 over what is finite in both, and how many elements only the first has finite."""
    one, other = expected.detach().double(), made.detach().double()
    norm, apart = float(one.norm()), float((one - other).norm())
    count = 0
    if not math.isfinite(norm + apart):  # else every element is finite
        finite = torch.isfinite(one)
        lost = finite & ~torch.isfinite(other)
        count = int(lost.sum())
        both = finite & ~lost
        norm, apart = float(one[both].norm()), float((one[both] - other[both]).norm())
    return (apart / norm if norm else (0.0 if not apart else float("inf"))), count
