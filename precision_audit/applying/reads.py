"""Who reads what in the plan's graph, and in which format.

Takes a graph and its plan; answers, per value, the format the plan makes it in and the one each reader is given, and
where each op stands: its module, whether it is a part of the state. Knows nothing of modules that run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.plan.reading import needs
from precision_audit.records import Graph, Op, Plan, Tensor

STATE = ("parameter", "buffer", "constant")


@dataclass(frozen=True, slots=True)
class Read:
    """`op` reads `value`; `need` as `plan.reading` calls it."""

    op: Op
    value: str
    need: str


@dataclass(frozen=True, slots=True)
class Reads:
    """One graph under one plan."""

    graph: Graph
    plan: Plan
    tensors: Mapping[str, Tensor]
    makers: Mapping[str, Op]  # of a value
    ops: Mapping[str, Op]  # by key
    of_op: Mapping[str, tuple[Read, ...]]  # float operands of an op, by its key
    readers: Mapping[str, tuple[Read, ...]]  # of a value
    formats: Mapping[str, str]
    given: Mapping[tuple[str, str], str]  # (value, reader) → what a cast or a copy gives it

    @property
    def computed(self) -> Iterator[Op]:
        return (op for op in self.graph.ops if op.kind not in (*STATE, "input"))

    def is_state(self, value: str) -> bool:
        return self.makers[value].kind in STATE

    def made(self, value: str) -> str:
        """The format the plan makes a value in: of several outputs only those captured high follow the op's."""
        tensor = self.tensors[value]
        return (
            self.formats.get(self.makers[value].key, tensor.format)
            if tensor.format == self.plan.high
            else tensor.format
        )

    def read(self, value: str, reader: str) -> str:
        """The format that a reader (an op's key, or `output:i`) is given a value in."""
        return self.given.get((value, reader)) or self.made(value)


def reads_of(graph: Graph, plan: Plan) -> Reads:
    """Everything asked of `graph` under `plan`."""
    tensors: dict[str, Tensor] = {}
    makers: dict[str, Op] = {}
    of_op: dict[str, tuple[Read, ...]] = {}
    readers: dict[str, list[Read]] = {}
    swapped = {swap.op for swap in plan.swaps}
    for op in graph.ops:
        for value, tensor in zip(op.values, op.outputs, strict=True):
            tensors[value], makers[value] = tensor, op
        found = [Read(op, op.operands[i].value, need) for i, need in needs(op, tensors, "", op.key in swapped)]
        of_op[op.key] = tuple(found)
        for each in found:
            readers.setdefault(each.value, []).append(each)
    given = {(each.value, key): each.to for each in plan.casts for key in each.consumers}
    given |= {(each.value, key): each.to for each in plan.folds if each.copy for key in each.consumers}
    formats = dict(plan.formats)
    kept = {value: tuple(each) for value, each in readers.items()}
    made = Reads(graph, plan, tensors, makers, {op.key: op for op in graph.ops}, of_op, kept, formats, given)
    for op in reversed(graph.ops):
        _cast_earlier(op, made, plan, formats, given)
    return made


def _cast_earlier(op: Op, reads: Reads, plan: Plan, formats: dict[str, str], given: dict[tuple[str, str], str]) -> None:
    """An op that only moves values and is read low alone runs low as well: rounding first and moving then gives the
    same numbers, and the cast comes to where the values enter."""
    known = ops.row(op.op)
    operands = reads.of_op[op.key]
    if known is None or known.arithmetic != "none" or op.fixed or op.follows or op.mutates or op.region:
        return
    if formats.get(op.key) != plan.high or len(operands) != 1 or reads.is_state(operands[0].value):
        return
    values = floats(reads, op)
    users = [(value, read.op.key) for value in values for read in reads.readers.get(value, ())]
    shared = {value for members in reads.graph.aliases for value in members}
    if not users or not shared.isdisjoint(values) or not set(values).isdisjoint(reads.graph.outputs):
        return
    if all(given.get(user) == plan.low for user in users):
        formats[op.key] = plan.low
        for user in users:
            del given[user]
        if reads.made(operands[0].value) != plan.low:
            given[operands[0].value, op.key] = plan.low


def floats(reads: Reads, op: Op) -> list[str]:
    """The float values that an op makes."""
    return [value for value, tensor in zip(op.values, op.outputs, strict=True) if is_float(tensor.format)]
