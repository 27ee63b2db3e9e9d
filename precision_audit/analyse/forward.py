"""Forward statistics: what every float value holds, streamed over all batches.

Takes a capture and batches; gives one `Range` per float value and the `Inner` numbers of composite ops. Memory does not
grow with the number of batches: of each value 300 counters are kept, of activations nothing. Values that depend on no
input are PROVED and known without any batch. Never changes the model: buffers and the random state are put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from precision_audit import ops
from precision_audit.ambient import restored_on_error
from precision_audit.capture import Captured
from precision_audit.formats import is_float
from precision_audit.records import Graph, Inner, Range
from precision_audit.rewrite import unchanged
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.runs import Batch, Conditions, without_trace

_LOWEST = -1100  # exponents of fp64 subnormals end at -1074


def forward(captured: Captured, batches: Sequence[Batch]) -> tuple[tuple[Range, ...], tuple[Inner, ...]]:
    """Ranges of all float values, in graph order, and inner numbers."""
    module = unchanged({captured.graph.mode: captured})
    constant = independent(captured.graph)
    seen: dict[str, _Streamed] = {}
    for index, batch in enumerate(batches):
        recorder = _Recorder(module, captured.graph, seen, constant, index)
        _run(recorder, module, batch)
    found = []
    for op in captured.graph.ops:
        for value, tensor in zip(op.values, op.outputs, strict=True):
            if value in seen and is_float(tensor.format):
                found.append(seen[value].range(value, value in constant))
    return tuple(found), ()


def independent(graph: Graph) -> frozenset[str]:
    """Values that depend on no input and no random draw: the same in every call."""
    found: set[str] = set()
    for op in graph.ops:
        row = ops.row(op.op)
        random = row is not None and row.kind == "random"
        if op.kind != "input" and not random and all(operand.value in found for operand in op.operands):
            found.update(op.values)
    return frozenset(found)


class _Streamed:
    """Counters of one value."""

    def __init__(self) -> None:
        self.count = self.zeros = self.nan = self.infinite = 0
        self.lowest, self.highest, self.smallest = np.inf, -np.inf, np.inf
        self.amax, self.batch, self.lost_in, self.whole = -1.0, 0, -1, True
        self.exponents: dict[int, int] = {}

    def add(self, value: Tensor, batch: int) -> None:
        while torch._C._functorch.is_batchedtensor(value):  # inside the user's vmap: all samples at once
            value = torch._C._functorch.get_unwrapped(value)
        flat = value.detach().reshape(-1)
        self.count += flat.numel()
        finite = torch.isfinite(flat)
        if not bool(finite.all()):
            nan = int(torch.isnan(flat).sum())
            self.nan += nan
            self.infinite += int((~finite).sum()) - nan
            self.lost_in = batch if self.lost_in < 0 else self.lost_in
            flat = flat[finite]
        if flat.numel() == 0:
            return
        wide = flat.double()
        self.lowest = min(self.lowest, float(wide.min()))
        self.highest = max(self.highest, float(wide.max()))
        magnitude = wide.abs()
        largest = float(magnitude.max())
        if largest > self.amax:
            self.amax, self.batch = largest, batch
        self.whole = self.whole and bool((wide == wide.round()).all())
        present = magnitude[magnitude > 0]
        self.zeros += magnitude.numel() - present.numel()
        if present.numel():
            self.smallest = min(self.smallest, float(present.min()))
            exponents, counts = torch.unique(torch.frexp(present)[1] - 1, return_counts=True)
            for exponent, number in zip(exponents.tolist(), counts.tolist(), strict=True):
                self.exponents[exponent] = self.exponents.get(exponent, 0) + number

    def range(self, value: str, proved: bool) -> Range:
        some = self.amax >= 0
        return Range(
            value=value,
            basis="PROVED" if proved else "OBSERVED",
            count=self.count,
            amax=max(self.amax, 0.0),
            smallest=float(self.smallest) if self.exponents else 0.0,
            lowest=float(self.lowest) if some else 0.0,
            highest=float(self.highest) if some else 0.0,
            zeros=self.zeros,
            nan=self.nan,
            infinite=self.infinite,
            histogram=tuple(sorted(self.exponents.items())),
            whole=self.whole and some,
            batch=self.batch,
            lost_in=self.lost_in,
        )


class _Recorder(fx.Interpreter):
    def __init__(
        self, module: Converted, graph: Graph, seen: dict[str, _Streamed], constant: Iterable[str], batch: int
    ) -> None:
        super().__init__(module, graph=module.graph)
        self._seen, self._constant, self._batch = seen, frozenset(constant), batch

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        key = n.meta.get("op_key")
        if key is not None:
            for value, tensor in _tensors(key, result).items():
                if tensor.is_floating_point() and not (self._batch and value in self._constant):
                    self._seen.setdefault(value, _Streamed()).add(tensor, self._batch)
        return result


def _tensors(key: str, result: Any) -> Mapping[str, Tensor]:
    if isinstance(result, Tensor):
        return {key: result}
    if isinstance(result, tuple | list):
        if len(result) == 1 and isinstance(result[0], Tensor):
            return {key: result[0]}
        return {f"{key}:{i}": each for i, each in enumerate(result) if isinstance(each, Tensor)}
    return {}


def _run(recorder: _Recorder, module: Converted, batch: Batch) -> None:
    conditions = Conditions(training=False, draws=True, written=module.written)
    with torch.no_grad(), restored_on_error(), without_trace(module, conditions):
        args, kwargs = pytree.tree_map_only(Tensor, lambda value: value.detach().clone(), (batch[0], dict(batch[1])))
        recorder.run(*module.flatten(*module.as_read(args, kwargs)), enable_io_processing=False)
