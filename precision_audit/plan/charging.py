"""The planner's question as numbers: a graph with demands becomes a labelling problem for `cut.py`.

Takes readings, labels, prices and (later) error shares; gives the `Problem` and which vertex each op is. A vertex per
op with a choice; vertex 0 is always high and vertex 1 always low, they stand for everything decided. What is charged:
time of each op by label, one cast per tensor, direction and stretch, shared by its readers, and the second copy of a
parameter that is stored in both formats. A third format adds costs of one label or charges with a decided source,
never a label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from precision_audit.plan.contract import FREE, HIGH, LOW
from precision_audit.plan.cut import BOTH, DOWN, UP, Group, Problem
from precision_audit.plan.labelling import CAPTURED, Labels, promoted_anyway
from precision_audit.plan.labelling import FREE as ASKS_NOTHING
from precision_audit.plan.labelling import HIGH as ASKS_HIGH
from precision_audit.plan.labelling import LOW as ASKS_LOW
from precision_audit.plan.promotion import promotes
from precision_audit.plan.reading import Reader, Readings
from precision_audit.records import Policy, Tensor

ALWAYS_HIGH, ALWAYS_LOW = 0, 1


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds: of op `position` in a format, of casting a tensor, of keeping a second copy of a parameter. `share` is
    λ times the error share of a source: an op's key (it runs low), or `cast:` and a value (it is read low); `read` that
    of a value by one reader, which is paid by each reader for itself."""

    op: Callable[[int, str], float]
    cast: Callable[[Tensor, str, str], float]
    copy: Callable[[Tensor, str], float]
    share: Callable[[str], float]
    read: Callable[[str, str], float] | None = None


@dataclass(frozen=True, slots=True)
class Charged:
    problem: Problem
    vertex: Mapping[int, int]  # number of an op with a label → its vertex


def charge(reads: Readings, labels: Labels, policy: Policy, prices: Prices) -> Charged:
    """The labelling problem of a graph."""
    return _Charges(reads, labels, policy, prices).collect()


class _Charges:
    def __init__(self, reads: Readings, labels: Labels, policy: Policy, prices: Prices) -> None:
        self._reads, self._labels, self._policy, self._prices = reads, labels, policy, prices
        asked = enumerate(labels.demand)
        chosen = [i for i, demand in asked if demand in (ASKS_NOTHING, ASKS_HIGH, ASKS_LOW)]
        self._vertex = {position: number + 2 for number, position in enumerate(chosen)}
        self._high = [0.0] * (len(chosen) + 2)
        self._low = [0.0] * (len(chosen) + 2)
        self._groups: list[Group] = []
        self._promoted: dict[int, frozenset[str]] = {}
        self._first_name = {name: names[0] for names in reads.graph.storages for name in names}

    def collect(self) -> Charged:
        self._charge_ops()
        stored: dict[str, list[tuple[str, Reader]]] = {}
        for value in self._reads.readers:
            if self._reads.maker[value] in self._labels.folded:
                readers = stored.setdefault(self._first_name.get(value, value), [])
                readers.extend((value, reader) for reader in self._reads.readers[value])
                continue
            for stretch in self._reads.stretches(value):
                self._charge_value(value, stretch)
        for value, named in stored.items():
            self._charge_copies(value, named)
        pins = {ASKS_NOTHING: FREE, ASKS_HIGH: HIGH, ASKS_LOW: LOW}
        pinned = [HIGH, LOW, *(pins[self._labels.demand[position]] for position in self._vertex)]
        ties = [
            (self._vertex[a], self._vertex[b])
            for a, b in self._labels.ties if a in self._vertex and b in self._vertex
        ]  # fmt: skip
        problem = Problem(
            np.array(self._high), np.array(self._low), np.array(pinned, dtype=np.int8), ties, self._groups
        )
        return Charged(problem, self._vertex)

    def _charge_ops(self) -> None:
        for position, vertex in self._vertex.items():
            op = self._reads.graph.ops[position]
            if op.kind == "input":  # a free one; it costs nothing, but is rounded when it comes in low
                self._low[vertex] += self._share(op.key)
            elif position not in self._labels.folded:
                self._high[vertex] += self._prices.op(position, self._policy.high)
                self._low[vertex] += self._prices.op(position, self._policy.low) + self._prices.share(op.key)

    def _charge_value(self, value: str, readers: list[Reader]) -> None:
        """Casts of one value at run time."""
        high, low, cast = self._policy.high, self._policy.low, self._prices.cast
        maker = self._reads.maker[value]
        tensor = self._reads.tensors[value]
        low_readers, high_readers, thirds = self._needs(value, readers)
        demand = self._labels.demand[maker]
        changes = tensor.format == high and demand != CAPTURED
        vertex = self._vertex.get(maker) if changes else None
        if tensor.format == high and (vertex is not None or not changes):
            self._charge_reads(value, readers, ALWAYS_HIGH if vertex is None else vertex)
        if vertex is not None:
            down = cast(tensor, high, low) + self._share(value)
            self._add_pair(vertex, low_readers, high_readers, down, cast(tensor, low, high))
            for third in thirds:
                self._high[vertex] += cast(tensor, high, third)
                self._low[vertex] += cast(tensor, low, third)
            return
        made = demand if changes else tensor.format
        if made != low:
            share = self._share(value) if made == high else 0.0
            self._add(ALWAYS_HIGH, low_readers, cast(tensor, made, low) + share, DOWN)
        if made != tensor.format:
            self._add(ALWAYS_LOW, high_readers, cast(tensor, made, tensor.format), UP)

    def _charge_copies(self, value: str, named: list[tuple[str, Reader]]) -> None:
        """A parameter's other formats cost no time; what is charged is a second copy, if both formats are read."""
        tensor = self._reads.tensors[value]
        low_readers: list[int] = []
        high_readers: list[int] = []
        for name, reader in named:
            if tensor.format != self._policy.low:
                self._charge_reads(name, [reader], ALWAYS_HIGH)
            lows, highs, _ = self._needs(name, [reader])
            low_readers.extend(lows)
            high_readers.extend(highs)
        if tensor.format == self._policy.low:
            return
        vertex = self._vertex.get(self._reads.maker[value], ALWAYS_HIGH)
        copy = self._prices.copy(tensor, self._policy.low)
        self._add_pair(vertex, low_readers, high_readers, copy, copy)
        self._add(ALWAYS_HIGH, low_readers, self._share(value), DOWN)

    def _charge_reads(self, value: str, readers: list[Reader], source: int) -> None:
        """What each reader by itself adds to the error by reading the value low."""
        price = self._prices.read
        for reader in readers if price is not None else ():
            if price is not None and (share := price(value, reader.key)):
                self._add(source, self._needs(value, [reader])[0], share, DOWN)

    def _needs(self, value: str, readers: list[Reader]) -> tuple[list[int], list[int], list[str]]:
        """Vertices that need the value low when low, vertices that need it as captured when high, third formats."""
        low_readers: list[int] = []
        high_readers: list[int] = []
        thirds: set[str] = set()
        for reader in readers:
            if reader.need == "output":
                if self._policy.keep_io_types:
                    high_readers.append(ALWAYS_HIGH)
                continue
            if reader.need in ("any", "stays") or (reader.position, value) in self._labels.lenient:
                continue
            demand = self._labels.demand[reader.position]
            vertex = self._vertex.get(reader.position)
            if demand == CAPTURED or (reader.position, value) in self._labels.rigid:
                high_readers.append(ALWAYS_HIGH)
            elif vertex is None:
                thirds.add(demand)
            else:
                low_readers.append(vertex)
                if not self._promotes(reader.position, value):
                    high_readers.append(vertex)
        return low_readers, high_readers, sorted(thirds)

    def _promotes(self, position: int, value: str) -> bool:
        if not promotes(self._reads.graph.ops[position]):
            return False
        if position not in self._promoted:
            self._promoted[position] = promoted_anyway(self._labels, self._reads, position, self._policy)
        return value in self._promoted[position]

    def _share(self, value: str) -> float:
        return self._prices.share(f"cast:{value}")

    def _add_pair(self, source: int, lows: list[int], highs: list[int], down: float, up: float) -> None:
        """Both directions of one tensor; where the same readers share both, as one charge that is paid either way."""
        if lows == highs:
            both = min(down, up)
            self._add(source, lows, both, BOTH)
            down, up = down - both, up - both
        self._add(source, lows, down, DOWN)
        self._add(source, highs, up, UP)

    def _add(self, source: int, readers: list[int], charge: float, way: int) -> None:
        if readers and charge > 0:
            self._groups.append(Group(source, tuple(readers), charge, way))
