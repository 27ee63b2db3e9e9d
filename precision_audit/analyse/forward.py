"""Forward statistics: what every float value holds, streamed over all batches.

Takes a capture and batches; gives one `Range` per float value and the `Inner` numbers of composite ops. Memory does not
grow with the number of batches: of each value counters are kept, of activations nothing. Values that depend on no input
are PROVED and known without any batch. Never changes the model: buffers and the random state are put back.

A value that holds the same elements as the op's operand (a view, a transpose, a copy) has that operand's counts, which
are not counted again. Values that depend on no input are counted once; again only where they follow a symbolic size,
which other batches may have larger.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from precision_audit.ambient import restored_on_error
from precision_audit.analyse.batches import check_batch, not_run
from precision_audit.analyse.constants import UNWRITTEN, cleared, evaluated, independent, sized
from precision_audit.analyse.counting import Counts, counted
from precision_audit.analyse.histogram import points
from precision_audit.analyse.inner import Measured, measured
from precision_audit.analyse.quantised import Products
from precision_audit.analyse.streaming import Streamed
from precision_audit.capture import Captured
from precision_audit.formats import FORMATS, Format, is_float
from precision_audit.records import Inner, Mode, Op, Plan, Range
from precision_audit.rewrite import rewrite
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.runs import Batch, Conditions, without_trace

__all__ = ["forward", "independent"]

# Hand out all elements of their first operand and no others, wherever the number of elements is the same.
_REARRANGE = frozenset(
    (
        *("_reshape_alias", "_unsafe_view", "adjoint", "alias", "channel_shuffle", "clone", "contiguous", "detach"),
        *("expand", "expand_as", "flatten", "flip", "lift_fresh", "lift_fresh_copy", "mH", "mT", "matrix_H"),
        *("moveaxis", "movedim", "narrow", "numpy_T", "permute", "pixel_shuffle", "pixel_unshuffle", "reshape"),
        *("reshape_as", "roll", "rot90", "slice", "squeeze", "swapaxes", "swapdims", "t", "to", "transpose"),
        *("type_as", "unflatten", "unsqueeze", "view", "view_as"),
    )
)


def forward(
    captured: Captured,
    batches: Sequence[Batch],
    formats: Iterable[Format] = (),
    products: Products | None = None,
) -> tuple[tuple[Range, ...], tuple[Inner, ...]]:
    """Ranges of all float values, in graph order, and inner numbers.

    `formats` are formats of the user's own with 7 mantissa bits or more, so that their shares are exact too. `products`
    is shown the operands of the example's. Raises InputError for a batch that does not fit what was captured.
    """
    mode = captured.graph.mode
    empty: dict[Mode, Plan] = {mode: Plan("", mode, "", "", (), ())}
    module = rewrite({mode: captured}, empty, share_parameters=not _writes_constants(captured))
    for index, batch in enumerate(batches):
        check_batch(module, captured.graph, batch, index)
    forwards = _Forward(captured, module, points((*FORMATS.values(), *formats)), products)
    forwards.prove()
    for index, batch in enumerate(batches):
        forwards.run(batch, index)
    return tuple(forwards.ranges()), tuple(forwards.inner.values())


class _Forward:
    """What has been seen so far."""

    def __init__(
        self, captured: Captured, module: Converted, thresholds: tuple[float, ...], products: Products | None
    ) -> None:
        self.graph, self.module, self.products = captured.graph, module, products
        self.ops = {op.key: op for op in captured.graph.ops}
        self.thresholds = thresholds
        self.constant = independent(captured.graph)
        self.sized = sized(captured)
        self.shared = {value: members for members in captured.graph.aliases for value in members}
        self.seen: dict[str, Streamed] = {}
        self.proved: dict[str, Counts] = {}
        self.inner: dict[tuple[str, str], Inner] = {}
        self.apart: set[str] = (
            set()
        )  # values that were counted themselves, which goes on: batches refer to earlier ones

    def prove(self) -> None:
        """Run what depends on no input."""
        with _untouched(self.module):
            for key, result in evaluated(self.module.graph, self.module, self.constant):
                for value, tensor in tensors(key, result).items():
                    if tensor.is_floating_point() and not _is_wrapped(tensor):
                        self.proved[value] = counted(tensor, self.thresholds)
        flags: dict[str, Counts] = {}
        for value, counts in self.proved.items():
            flags[value] = counts
            self.add(value, counts, 0, flags)

    def run(self, batch: Batch, index: int) -> None:
        """One batch."""
        with _untouched(self.module):
            args, kwargs = pytree.tree_map_only(Tensor, lambda v: v.detach().clone(), (batch[0], dict(batch[1])))
            flat = self.module.flatten(*self.module.as_read(args, kwargs))
            try:
                _Recorder(self, index).run(*flat, enable_io_processing=False)
            except (RuntimeError, IndexError) as error:
                raise not_run(index, error) from error

    def add(self, value: str, counts: Counts, batch: int, flags: Mapping[str, Counts]) -> None:
        """`flags` are the counts of this batch's other values."""
        origin = ""
        if counts.nan or counts.infinite:
            read = [flags[o.value] for o in self._maker(value).operands if o.value in flags]
            if counts.nan and not any(each.nan for each in read):
                origin = "nan"
            elif counts.infinite and not any(each.nan or each.infinite for each in read):
                origin = "infinity"
        self.seen.setdefault(value, Streamed()).add(counts, batch, origin)

    def note(self, op: Op, found: Measured, batch: int) -> None:
        """An inner number of this batch."""
        before = self.inner.get((op.key, found.what))
        if before is None:
            ends = found.amax, found.smallest
            self.inner[op.key, found.what] = Inner(op.key, found.what, *ends, found.held, batch, found.kernels)
            return
        least = min((each for each in (before.smallest, found.smallest) if each), default=0.0)
        largest = (found.amax, batch) if found.amax > before.amax else (before.amax, before.batch)
        self.inner[op.key, found.what] = dataclasses.replace(before, amax=largest[0], batch=largest[1], smallest=least)

    def ranges(self) -> Iterator[Range]:
        for op in self.graph.ops:
            for value, tensor in zip(op.values, op.outputs, strict=True):
                if value in self.seen and is_float(tensor.format):
                    yield self.seen[value].range(value, "PROVED" if value in self.constant else "OBSERVED")

    def _maker(self, value: str) -> Op:
        return self.ops.get(value) or self.ops[value.rpartition(":")[0]]


class _Recorder(fx.Interpreter):
    """One run of the graph that counts every float value as it is made."""

    def __init__(self, forwards: _Forward, batch: int) -> None:
        super().__init__(forwards.module, graph=forwards.module.graph)
        self._all, self._batch = forwards, batch
        self._counts: dict[str, Counts] = dict(forwards.proved)  # of this batch
        self._versions: dict[fx.Node, tuple[int, Counts]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        key = n.meta.get("op_key")
        if key is None:
            return result
        op = self._all.ops[key]
        result = cleared(n, result)
        for value, tensor in tensors(key, result).items():
            if tensor.is_floating_point() and self._is_new(value):
                self._record(op, n, value, tensor)
        for found in measured(op, n, self.env, result):
            self._all.note(op, found, self._batch)
        if self._all.products is not None and self._batch == 0:
            self._all.products.computed(op, n, self.env)
        return result

    def _is_new(self, value: str) -> bool:
        if self._batch > 0 and value in self._all.constant:
            return value in self._all.sized
        return value not in self._all.proved

    def _record(self, op: Op, node: fx.Node, value: str, tensor: Tensor) -> None:
        while _is_wrapped(tensor):  # inside the user's vmap or grad: all samples at once
            tensor = torch._C._functorch.get_unwrapped(tensor)
        counts = None if value in self._all.apart else self._same_as_operand(op, node, tensor)
        if op.op in UNWRITTEN:
            counts = Counts()
        if counts is None:
            self._all.apart.add(value)
            before = self._all.seen.get(value)
            known, fraction = (before.counts.smallest, before.fraction) if before else (float("inf"), False)
            with torch._C._DisableFuncTorch():  # what is counted inside a transform is no part of it
                counts = counted(tensor, self._all.thresholds, known, fraction)
        self._all.add(value, counts, self._batch, self._counts)
        self._counts[value] = counts
        self._versions[node] = (tensor._version, counts)
        if op.mutates:  # whoever shares the memory holds that now
            for other in self._all.shared.get(value, ()):
                self._counts[other] = counts

    def _same_as_operand(self, op: Op, node: fx.Node, tensor: Tensor) -> Counts | None:
        """The operand's counts where the result holds the same elements."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or source not in self._versions or op.mutates:
            return None
        read = self.env.get(source)
        if not isinstance(read, Tensor) or read.dtype != tensor.dtype or read.numel() != tensor.numel():
            return None
        version, counts = self._versions[source]
        same = tensor is read or op.op in _REARRANGE
        return counts if same and read._version == version else None


def tensors(key: str, result: Any) -> Mapping[str, Tensor]:
    """The tensors of an op's result by value."""
    if isinstance(result, Tensor):
        return {key: result}
    if isinstance(result, tuple | list):
        if len(result) == 1 and isinstance(result[0], Tensor):
            return {key: result[0]}
        return {f"{key}:{i}": each for i, each in enumerate(result) if isinstance(each, Tensor)}
    return {}


def _is_wrapped(tensor: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _writes_constants(captured: Captured) -> bool:
    """Whether the model writes to a tensor that is neither parameter nor buffer, which nobody puts back."""
    constants = {op.key for op in captured.graph.ops if op.kind == "constant"}
    written = {each.value for op in captured.graph.ops if op.mutates for each in op.operands}
    return not constants.isdisjoint(written.union(*captured.graph.aliases))


@contextlib.contextmanager
def _untouched(module: Converted) -> Iterator[None]:
    """State and random generator are afterwards what they were. One model runs alone, so draws need no care: without
    it no op pays for a dispatch mode."""
    conditions = Conditions(training=False, draws=False, written=module.written)
    with torch.no_grad(), restored_on_error(), without_trace(module, conditions):
        yield
