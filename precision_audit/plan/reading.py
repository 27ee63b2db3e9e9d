"""Who reads which float value, and what each reader needs it to be.

Takes a graph and the swaps of a plan; gives the `Reader`s of every value, grouped into *stretches*: between two writes
to a value's memory all readers see the same numbers and can share one cast, across a write they cannot. Knows argument
roles and PyTorch's promotion; knows no costs and chooses nothing.

A reader's need:
- `match`   the operand has the format the op runs in
- `mixed`   the op runs low and reads this operand high as well (parameters of a norm)
- `stays`   the operand is read as captured, whatever the op runs in
- `any`     every float format will do: comparisons (they promote, and make no float), conversions, the operands beside
            a written one, and tensors of no dimension in pointwise ops (they do not take part in promotion)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.plan.promotion import promotes, writes_in_place
from precision_audit.records import Graph, Op, Swap, Tensor


class Reader(NamedTuple):
    """Op number `position` (or the model's output `output:i`, numbered after all ops) reads a value by `need`."""

    position: int
    key: str
    need: str


@dataclass(frozen=True, slots=True)
class Readings:
    """Everything the planner asks about who reads what. Ops are numbered in graph order."""

    graph: Graph
    tensors: Mapping[str, Tensor]
    maker: Mapping[str, int]  # value → number of the op that makes it
    readers: Mapping[str, list[Reader]]  # value → readers in graph order, each once per need
    writes: Mapping[str, list[int]]  # value of an alias class → numbers of the ops that write its memory
    same: Sequence[int]  # `alike` of the graph

    def stretches(self, value: str) -> Iterator[list[Reader]]:
        """Readers of `value` that can share a cast."""
        found = self.readers.get(value, [])
        writes = self.writes.get(value)
        if not writes:
            if found:
                yield found
            return
        parts: dict[int, list[Reader]] = {}
        for reader in found:
            parts.setdefault(bisect_left(writes, reader.position), []).append(reader)
        yield from parts.values()


def alike(graph: Graph) -> list[int]:
    """For each op a number that ops share which differ in names only. Layers repeat: what follows from an op's kind,
    arguments, shapes and formats is worked out once for all of them."""
    tensors: dict[str, Tensor] = {}
    known: dict[object, int] = {}
    numbers = []
    for op in graph.ops:
        tensors.update(zip(op.values, op.outputs, strict=True))
        read = tuple((operand.argument, tensors.get(operand.value)) for operand in op.operands)
        same = (op.op, op.kind, op.attributes, op.mutates, op.follows, op.fixed, op.outputs, read)
        numbers.append(known.setdefault(same, len(known)))
    return numbers


def readings(graph: Graph, kernels: str, swaps: Iterable[Swap], same: Sequence[int] | None = None) -> Readings:
    """The readers of all float values of `graph` on devices with these kernels. `same` is `alike(graph)`."""
    same = alike(graph) if same is None else same
    tensors: dict[str, Tensor] = {}
    maker: dict[str, int] = {}
    readers: dict[str, list[Reader]] = {}
    swapped = {key for swap in swaps for key in swap.ops}
    known: dict[tuple[int, bool], list[tuple[int, str]]] = {}
    for position, op in enumerate(graph.ops):
        for value, tensor in zip(op.values, op.outputs, strict=True):
            tensors[value] = tensor
            maker[value] = position
        sort = (same[position], op.key in swapped)
        needed = known.get(sort)
        if needed is None:
            needed = known[sort] = needs(op, tensors, kernels, op.key in swapped)
        for value, need in dict.fromkeys((op.operands[index].value, need) for index, need in needed):
            readers.setdefault(value, []).append(Reader(position, op.key, need))
    for index, value in enumerate(graph.outputs):
        if value in tensors and is_float(tensors[value].format):
            reader = Reader(len(graph.ops) + index, f"output:{index}", "output")
            readers.setdefault(value, []).append(reader)
    return Readings(graph, tensors, maker, readers, _writes(graph), same)


def needs(op: Op, tensors: Mapping[str, Tensor], kernels: str, swapped: bool) -> list[tuple[int, str]]:
    """Numbers of the operands of `op` that are floats, and how it needs each."""
    operands = [
        (index, operand, tensors[operand.value]) for index, operand in enumerate(op.operands)
        if operand.value in tensors and is_float(tensors[operand.value].format)
    ]  # fmt: skip
    pointwise = promotes(op)
    in_place = writes_in_place(op)
    predicate = pointwise and not any(
        is_float(tensor.format) or tensor.format.startswith("complex") for tensor in op.outputs
    )
    spatial = pointwise and any(tensor.shape for _, _, tensor in operands)
    found = []
    for index, operand, tensor in operands:
        need: str = ops.role(op, operand.argument, kernels)
        if swapped and operand.argument in ("weight", "bias"):
            need = "stays"  # the module that replaces the op owns its weight and bias
        elif op.op == "view_as_complex":
            need = "stays"  # no cast before a view of the memory itself
        elif need == "match" and (
            predicate
            or (in_place and operand.argument != op.mutates)
            or (spatial and not tensor.shape and not in_place)
        ):
            need = "any"
        found.append((index, need))
    return found


def promoting_operands(op: Op, tensors: Mapping[str, Tensor]) -> list[str]:
    """Float values that take part in the promotion of a promoting op, one entry per operand: those with dimensions,
    or all where none has any."""
    floats = [
        operand.value for operand in op.operands
        if operand.value in tensors and is_float(tensors[operand.value].format)
    ]  # fmt: skip
    return [value for value in floats if tensors[value].shape] or floats


def _writes(graph: Graph) -> dict[str, list[int]]:
    """Values that share written memory → numbers of the ops that write it, ascending."""
    class_of = {value: number for number, members in enumerate(graph.aliases) for value in members}
    by_class: dict[int, list[int]] = {}
    for position, op in enumerate(graph.ops):
        if not op.mutates:
            continue
        target = next((operand.value for operand in op.operands if operand.argument == op.mutates), "")
        if target in class_of:
            by_class.setdefault(class_of[target], []).append(position)
    return {value: by_class.get(number, []) for value, number in class_of.items()}
