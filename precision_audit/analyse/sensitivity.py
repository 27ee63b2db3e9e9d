"""Which source of rounding adds how much to the outputs' error.

Takes a capture, policy, device, the example and the differences that `beside` has kept; gives a `Share` per source:
every op that may run low, every value that may be read low (by reader, with the cross terms of readers that see the
same rounding), every linear that is to be swapped, or could be, by quantisation. Any plan's error is a sum
of these shares (`predicted_error.py`), so no plan has to be run.

With probes r of random ±1 over the outputs, each output in units of its norm, one backward pass of the twin gives
g = ∂(r·y)/∂v at every value v. A source with difference δ there has the share mean over probes of Σ (g·δ)²: rounding
errors of different elements are independent. Where they are not, the square of Σ g·δ comes out larger; where it is
more than four times the share, it is taken instead. What no gradient leads from is unknown, never zero.

Six probes and the twin's forward run are seven passes of the model; the run beside the low one is the eighth; where
elements were lost, `again` adds one or two. Holds one batch's activations (the twin's) and one difference per value and
format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from precision_audit import backends
from precision_audit.ambient import restored_on_error
from precision_audit.analyse.deltas import Deltas, swap_source, wrapped
from precision_audit.analyse.twin import Twin, probed_values, read_apart
from precision_audit.capture import Captured
from precision_audit.decide import decide
from precision_audit.formats import bytes_of, dtype_of, is_float
from precision_audit.plain import everything_low
from precision_audit.plan.reading import Reader, Readings, readings
from precision_audit.records import Graph, Hardware, Plan, Policy, Share, Swap, first_line
from precision_audit.rewrite import rewrite
from precision_audit.verify.runs import Batch, Conditions, without_trace

PROBES = 6
ACTIVATIONS = 16 << 30  # bytes of one batch's values; beyond it the twin is not run, as training would not be
_COHERENT = 4.0  # the signed square in units of the elementwise one, beyond which errors are no longer independent
_ENOUGH = 4  # probes to judge that by
_SLIGHT = 1e-3  # cross terms below this part of their value's own shares are left out

# Per probe: Σ (g·δ)² of each pair of readers, elementwise and signed. A source that is no cast has one reader, "".
Squares = list[tuple[Tensor, Tensor]]


def sensitivity(
    captured: Captured, policy: Policy, hardware: Hardware, batch: Batch, deltas: Deltas
) -> tuple[tuple[Share, ...], tuple[str, ...]]:
    """Shares in graph order, and notes."""
    ((shares, notes),) = sensitivities(captured, hardware, batch, [(policy, deltas)])
    return shares, notes


def sensitivities(
    captured: Captured, hardware: Hardware, batch: Batch, lows: Sequence[tuple[Policy, Deltas]]
) -> list[tuple[tuple[Share, ...], tuple[str, ...]]]:
    """The same for several low formats by one set of probes: gradients are the captured model's."""
    graph = captured.graph
    plains = [everything_low(graph, policy, hardware) for policy, _ in lows]
    if not any(plains):
        return [((), ())] * len(plains)
    size = bytes_of_values(graph)
    if size > ACTIVATIONS:
        said = f"sensitivity is unknown: the example's values take {size >> 30} GiB, give fewer rows"
        return [((), (said,))] * len(plains)
    reads = readings(graph, hardware.kernels, ())
    apart = read_apart(graph)
    ledgers = [
        _Ledger(deltas, dtype_of(policy.low), low_readers(reads, plain, policy) if plain else {}, apart)
        for (policy, deltas), plain in zip(lows, plains, strict=True)
    ]
    mode = graph.mode
    same = Plan("", mode, "", "", (), ())
    module = rewrite({mode: captured}, {mode: same}, share_parameters=True)
    seeds = next(deltas.seeds for (_, deltas), plain in zip(lows, plains, strict=True) if plain)
    twin = Twin(module, graph, seeds, ledgers[0] if len(ledgers) == 1 else _All(ledgers))
    conditions = Conditions(training=False, draws=True, written=module.written)
    try:
        with restored_on_error(), torch.enable_grad(), twin.writable():
            with without_trace(module, conditions):
                args, kwargs = pytree.tree_map_only(Tensor, lambda v: v.detach().clone(), (batch[0], dict(batch[1])))
                twin.run(module.flatten(args, kwargs))
            notes = _probe(twin, ledgers)
    except Exception as error:  # a kernel without a derivative, a transform that cannot be entered twice
        for ledger in ledgers:
            ledger.found.clear()
        notes = [f"sensitivity is unknown: the model cannot be differentiated ({first_line(error)})"]
    cut = _ancestors(graph, twin.cut, floats_only=True)
    return [
        (tuple(_shares(graph, plain, deltas, ledger, cut)) if plain else (), tuple(notes))
        for (_, deltas), plain, ledger in zip(lows, plains, ledgers, strict=True)
    ]


def to_be_swapped(graph: Graph, policy: Policy, hardware: Hardware) -> tuple[Swap, ...]:
    """The linears that the policy would swap for fp8, each by itself."""
    if not any(rule.classification == "fp8-eligible" for rule in policy.rules):
        return ()
    return decide(graph, policy, hardware, backends.listed(), fuse=False).swaps


def low_readers(reads: Readings, plain: Plan, policy: Policy) -> dict[str, tuple[str, ...]]:
    """By float value the readers that could read it low; of a value captured in the high format only."""
    formats = dict(plain.formats)

    def could(reader: Reader) -> bool:
        """An op without a format of its own compares."""
        return reader.need in ("match", "mixed") and formats.get(reader.key, policy.low) == policy.low

    found = {}
    for value, readers in reads.readers.items():
        keys = [reader.key for reader in readers if reader.need == "output" or could(reader)]
        if keys and reads.tensors[value].format == policy.high:
            found[value] = tuple(dict.fromkeys(keys))
    return found


@dataclass
class _Ledger:
    """Listens to the twin's values: holds differences and, probe by probe, sums their products with the gradient."""

    deltas: Deltas
    low: torch.dtype
    readers: dict[str, tuple[str, ...]]  # by value, those that could read it low
    apart: set[str]  # values whose readers are seen one by one
    rounding: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # of readers seen in this probe, by value
    found: dict[str, Squares] = field(default_factory=dict)  # by source

    def made(self, value: str, tensor: Tensor) -> None:
        if value in self.readers:
            rounded = self.deltas.difference(tensor.detach().to(self.low), tensor)
            if rounded is not None:
                self.rounding[value] = rounded
        known = (self.readers, self.deltas.low, self.deltas.swapped, self.deltas.alternatives)
        if any(value in each for each in known):
            tensor.register_hook(partial(self._arrived, value))  # type: ignore[no-untyped-call]

    def read(self, value: str, tensor: Tensor, reader: str) -> None:
        if reader in self.readers.get(value, ()):
            tensor.register_hook(partial(self._seen, value, reader))  # type: ignore[no-untyped-call]

    def _seen(self, value: str, reader: str, gradient: Tensor) -> None:
        if value in self.rounding and not wrapped(gradient):
            self.gradients.setdefault(value, {})[reader] = self.deltas.sampled(gradient.detach().float())

    def _arrived(self, value: str, gradient: Tensor) -> None:
        if wrapped(gradient):
            return
        total = self.deltas.sampled(gradient.detach().float())
        alternatives = self.deltas.alternatives.get(value, {})
        own = {value: self.deltas.low.get(value), swap_source(value): self.deltas.swapped.get(value)}
        for source, delta in (*own.items(), *alternatives.items()):
            if delta is not None:
                self.found.setdefault(source, []).append(_squares(total[None], delta))
        if value in self.rounding:
            seen = self.gradients.pop(value, {})
            rows = [seen.get(reader) for reader in self.readers[value]]
            missing = torch.zeros_like(total) if value in self.apart else total
            filled = [missing if row is None else row for row in rows]
            stacked = filled[0][None] if len(filled) == 1 else torch.stack(filled)
            self.found.setdefault(f"cast:{value}", []).append(_squares(stacked, self.rounding[value]))


@dataclass(frozen=True)
class _All:
    """Several ledgers that listen to one twin."""

    ledgers: Sequence[_Ledger]

    def made(self, value: str, tensor: Tensor) -> None:
        for ledger in self.ledgers:
            ledger.made(value, tensor)

    def read(self, value: str, tensor: Tensor, reader: str) -> None:
        for ledger in self.ledgers:
            ledger.read(value, tensor, reader)


def _squares(gradients: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """For one probe and readers in rows: Σ_i of products of two rows, and products of Σ_i of rows."""
    products = gradients * delta
    sums = products.sum(1).double()
    if not bool(torch.isfinite(sums).all()):  # lost in the low format; where nothing depends on it, no matter
        products = torch.where(gradients == 0, torch.zeros_like(products), products)
        sums = products.sum(1).double()
    return (products @ products.T).double(), torch.outer(sums, sums)


def _probe(twin: Twin, ledgers: Iterable[_Ledger]) -> list[str]:
    """Backward passes with random signs; what to say of outputs whose norm is zero."""
    generator = torch.Generator().manual_seed(0)
    if not twin.outputs:
        return ["sensitivity is unknown: no output can be differentiated"]
    scales, absolute = [], 0
    for output in twin.outputs:
        finite = torch.isfinite(output.detach())
        norm = float(output.detach()[finite].double().norm())
        absolute += norm == 0.0
        scales.append(finite.to(output.dtype) / (norm or 1.0))
    for probe in range(PROBES):
        signs = [
            (torch.randint(0, 2, output.shape, generator=generator) * 2 - 1).to(output) * scale
            for output, scale in zip(twin.outputs, scales, strict=True)
        ]
        torch.autograd.grad(twin.outputs, twin.leaves, signs, retain_graph=probe + 1 < PROBES, allow_unused=True)
        for ledger in ledgers:
            ledger.gradients.clear()
    return [f"{absolute} outputs are zero; their error is predicted in absolute terms"] if absolute else []


def _shares(graph: Graph, plain: Plan, deltas: Deltas, ledger: _Ledger, cut: set[str]) -> list[Share]:
    formats, reached = dict(plain.formats), _ancestors(graph, probed_values(graph))
    shares: list[Share] = []
    for op in graph.ops:
        computed = op.kind not in ("input", "parameter", "buffer", "constant")
        if computed and formats.get(op.key) == plain.low:
            shares.append(_of_op(op.key, op.values, deltas, ledger, reached, cut))
        if op.key in deltas.swaps:
            own = deltas.swapped.get(op.key)
            shares.append(_of_swap(swap_source(op.key), op.values[0], own, deltas, ledger, reached, cut))
        for source in (swap_source(op.key, scheme) for scheme in deltas.schemes.get(op.key, ())):
            other = deltas.alternatives.get(op.key, {}).get(source)
            shares.append(_of_swap(source, op.values[0], other, deltas, ledger, reached, cut))
        for value, tensor in zip(op.values, op.outputs, strict=True):
            if value in ledger.readers and is_float(tensor.format):
                shares.extend(_of_casts(value, deltas, ledger, reached, cut))
    return shares


def _of_op(
    key: str, values: tuple[str, ...], deltas: Deltas, ledger: _Ledger, reached: set[str], cut: set[str]
) -> Share:
    total, known = 0.0, True
    for value in values:
        if value in deltas.failed:
            known = False
        elif value in deltas.low and value in reached:
            share = _mean(ledger.found.get(value, []), deltas.stride)
            known = known and share is not None and value not in cut
            total += float(share[0, 0]) if share is not None else 0.0
    return Share(key, total, known=known)


def _of_swap(
    source: str,
    value: str,
    delta: Tensor | None,
    deltas: Deltas,
    ledger: _Ledger,
    reached: set[str],
    cut: set[str],
) -> Share:
    share = _mean(ledger.found.get(source, []), deltas.stride)
    idle = value not in reached or (delta is not None and not bool(delta.any()))
    known = idle or (source not in deltas.failed and share is not None and value not in cut)
    return Share(source, float(share[0, 0]) if share is not None else 0.0, known=known)


def _of_casts(value: str, deltas: Deltas, ledger: _Ledger, reached: set[str], cut: set[str]) -> list[Share]:
    source, readers = f"cast:{value}", ledger.readers[value]
    share = _mean(ledger.found.get(source, []), deltas.stride)
    idle = value not in reached or (value in ledger.rounding and not bool(ledger.rounding[value].any()))
    if share is None:
        return [Share(source, 0.0, reader, known=idle) for reader in readers]
    known = idle or value not in cut
    found = [Share(source, float(share[i, i]), reader, known=known) for i, reader in enumerate(readers)]
    least = _SLIGHT * float(share.diagonal().sum()) / len(readers)
    for i, one in enumerate(readers):
        for j in range(i + 1, len(readers)):
            if abs(cross := 2 * float(share[i, j])) > least:
                found.append(Share(source, cross, one, pair=readers[j], known=known))
    return found


def _mean(squares: Squares, stride: int) -> Tensor | None:
    """Mean over probes; the signed squares where they say that errors go together. None where a gradient is missing."""
    if not squares:
        return None
    independent = torch.stack([each for each, _ in squares]).mean(0)
    signed = torch.stack([each for _, each in squares]).mean(0)
    if bool(torch.isnan(independent).any()):
        return None
    apart = float(independent.diagonal().sum())
    # of each reader by itself, and of all together (unless their parts cancel: little is then left to compare with)
    each = float(signed.diagonal().sum()) > _COHERENT * apart
    every = float(signed.sum()) > max(_COHERENT * float(independent.sum()), apart)
    if len(squares) >= _ENOUGH and (each or every):  # of n times as many elements: n² as much, but of the chance part
        return stride * stride * signed - (stride * stride - stride) * independent if stride > 1 else signed
    return independent * stride


def bytes_of_values(graph: Graph) -> int:
    return int(
        sum(math.prod(t.hint) * bytes_of(t.format) for op in graph.ops for t in op.outputs if is_float(t.format))
    )


def _ancestors(graph: Graph, values: Iterable[str], floats_only: bool = False) -> set[str]:
    """The values from which a path leads to any of `values`, these included; through memory too, where one is written
    through another name of it. With `floats_only` no path leads through an integer: a decision has no gradient."""
    barred = {
        value for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)
        if floats_only and not is_float(tensor.format) and not tensor.format.startswith("complex")
    }  # fmt: skip
    shared = {value: members for members in graph.aliases for value in members}
    found: set[str] = set()
    more = set(values) - barred
    while more - found:
        found.update(*(shared.get(value, (value,)) for value in more), more)
        for op in reversed(graph.ops):
            if any(value in found for value in op.values):
                found.update({operand.value for operand in op.operands} - barred)
        more = {each for value in found if value in shared for each in shared[value]}
    return found
