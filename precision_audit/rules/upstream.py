"""What makes an operand, and where an error goes: walks over the graph for the rules about accuracy.

Takes a context; gives the region that makes some values (pointwise ops, views, factories, reductions, with the products
at its border), and how much of an error reaches an output of the model. Reads records only.

A product (a GEMM, convolution, attention) ends the walk: its sum is a new number. It belongs to the region where its
own rounding is what matters. A product of two activations is a step of the arithmetic around it, as q·k in a distance,
and may be walked through. A trunk is never walked up: an op that feeds a nearer product of the same region is left out,
or the walk up a residual stream would collect the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.records import Beside, Op
from precision_audit.rules import Context

STATE = frozenset({"input", "parameter", "buffer", "constant"})
PRODUCTS = frozenset({"matmul", "conv", "attention", "rnn"})
MOVES = frozenset({"view_layout", "cast", "concat"})  # kinds that hand values on as they are
_FEW = 4  # summands: a matrix of that many columns turns coordinates, and tensor cores gain nothing by it


@dataclass(frozen=True)
class Region:
    """Keys of the ops that make some values, each with its distance from them. `state`: the inputs, parameters and
    buffers where it begins."""

    cheap: Mapping[str, int]
    products: Mapping[str, int]
    state: Mapping[str, int]

    def nearest(self, *, products: bool = True) -> list[str]:
        """Keys of the ops, nearest first."""
        at = {**self.cheap, **(self.products if products else {})}
        return sorted(at, key=lambda key: at[key])


@dataclass(frozen=True)
class Upstream:
    """The walks; what is the same for all of them is computed once."""

    context: Context

    @cached_property
    def ops(self) -> Mapping[str, Op]:
        return self.context.by_key()

    @cached_property
    def constants(self) -> frozenset[str]:
        """Values that depend on no input and no random draw."""
        made = (value for op in self.context.graph.ops for value in op.values)
        return frozenset(made) - self.context.moving

    @cached_property
    def given(self) -> frozenset[str]:
        """Float values that come of an input or a product of the model, by float values alone. Worked out for all at
        once: to walk up from each of them would take the square of a chain's length."""
        found: set[str] = set()
        for op in self.context.graph.ops:
            begins = op.kind == "input" or (op.kind not in STATE and self.is_product(op))
            if begins or any(operand.value in found for operand in op.operands):
                found.update(value for value in op.values if self.is_float(value))
        return frozenset(found)

    @cached_property
    def _order(self) -> Mapping[str, int]:
        return {op.key: index for index, op in enumerate(self.context.graph.ops)}

    @cached_property
    def _shares(self) -> Mapping[str, tuple[str, ...]]:
        """By value: those that share memory with it, of which one is written in place."""
        return {value: group for group in self.context.graph.aliases for value in group}

    @cached_property
    def writers(self) -> Mapping[str, tuple[Op, ...]]:
        """By value: the ops that write to its memory in place."""
        writing = [op for op in self.context.graph.ops if op.mutates]
        found: dict[str, tuple[Op, ...]] = {}
        for group in self.context.graph.aliases:
            ops_ = tuple(op for op in writing if self.context.operand(op, op.mutates) in group)
            found.update((value, ops_) for value in group)
        return found

    def reading(self, op: Op, value: str) -> Iterable[Op]:
        """The ops that read the value `op` makes, under the other names of its memory too if `op` writes to it."""
        yield from self.context.readers.get(value, ())
        if op.mutates:
            for other in self._shares.get(value, ()):
                for reader in self.context.readers.get(other, ()):
                    if self._order[reader.key] > self._order[op.key]:
                        yield reader

    def shares(self, op: Op) -> Iterable[str]:
        """The values of `op`, and what it writes to."""
        yield from op.values
        if op.mutates:
            yield from (other for value in op.values for other in self._shares.get(value, ()))

    def is_product(self, op: Op) -> bool:
        """A sum over more than a few products, that is no constant."""
        if op.kind not in PRODUCTS or all(operand.value in self.constants for operand in op.operands):
            return False
        inputs = [self.context.tensors[operand.value] for operand in op.operands]
        depth = ops.reduction_depth(op, inputs) if op.kind == "matmul" else None
        return depth is None or depth > _FEW

    def is_float(self, value: str) -> bool:
        return is_float(self.context.tensors[value].format)

    def floats(self, op: Op) -> list[str]:
        """The float values that `op` reads, each once."""
        return list(dict.fromkeys(operand.value for operand in op.operands if self.is_float(operand.value)))

    def origin(self, value: str) -> str:
        """The value that views, casts and concatenations hand on, the first one of several."""
        op = self.context.maker[value]
        while op.kind in MOVES and self.floats(op):
            value = self.floats(op)[0]
            op = self.context.maker[value]
        return value

    def region(self, values: Iterable[str], *, through: bool = False, kept: bool = True) -> Region:
        """What makes `values`. `through`: products of two activations are walked through; with `kept` also those
        that were kept high in this run, where what is still off comes in with their operands."""
        cheap: dict[str, int] = {}
        products: dict[str, int] = {}
        state: dict[str, int] = {}
        queue = [(value, 1) for value in values]
        for value, distance in queue:
            op = self.context.maker[value]
            if op.key in cheap or op.key in products or op.key in state or not self.is_float(value):
                continue
            if op.kind in STATE:
                state[op.key] = distance
                continue
            if not self.is_product(op):
                cheap[op.key] = distance
            else:
                products[op.key] = distance
                if not (kept and op.key in self.context.kept) and (self._weighted(op) or not through):
                    continue
            read = [operand.value for operand in op.operands]
            read += [writer.key for writer in self.writers.get(value, ()) if len(writer.values) == 1]
            queue.extend((each, distance + 1) for each in read)
        return self._without_trunk(Region(cheap, products, state), self.context.kept if kept else frozenset())

    def _weighted(self, op: Op) -> bool:
        return any(operand.value in self.constants for operand in op.operands)

    def _without_trunk(self, found: Region, kept: frozenset[str]) -> Region:
        """Without what feeds a product of the region that lies nearer to its values, but for those `kept`."""
        nearest: dict[str, int] = {}  # op key → distance of the nearest product with a weight that it feeds
        for key, distance in sorted(found.products.items(), key=lambda item: item[1]):
            if not self._weighted(self.ops[key]) or key in kept:
                continue
            queue = [operand.value for operand in self.ops[key].operands]
            for value in queue:
                maker = self.context.maker[value]
                if maker.key not in nearest:
                    nearest[maker.key] = distance
                    queue.extend(operand.value for operand in maker.operands)

        def left(keys: Mapping[str, int]) -> dict[str, int]:
            return {key: at for key, at in keys.items() if at <= nearest.get(key, math.inf)}

        return Region(left(found.cheap), left(found.products), found.state)

    def descends(self, values: Iterable[str], keys: Iterable[str]) -> set[str]:
        """Those of `keys` that read one of `values`, directly or through others of `keys`."""
        among, found = set(keys), set[str]()
        queue = list(values)
        for value in queue:
            for reader in self.context.readers.get(value, ()):
                if reader.key in among and reader.key not in found:
                    found.add(reader.key)
                    queue.extend(reader.values)
        return found

    def ends(self, op: Op) -> bool:
        """Whether the op's result is only handed on, scaled or averaged, up to the outputs of the model."""
        queue = list(op.values)
        for value in queue:
            for reader in self.context.readers.get(value, ()):
                scales = reader.op in ("mean", "sum", "neg") or (reader.op == "mul" and len(reader.operands) == 1)
                if reader.kind not in MOVES and not scales:
                    return False
                queue.extend(reader.values)
        return True

    def damage(self, floor: float) -> dict[str, float]:
        """By value: the largest error of an output that descends from it through values that are all off by `floor`
        or more; infinite where elements are lost, the share changed for integers; 0 where no error arrives."""
        found: dict[str, float] = {}
        outputs = set(self.context.graph.outputs)
        for op in reversed(self.context.graph.ops):
            for value in op.values:
                handed = (each for each in self.shares(op) if each in outputs and (op.mutates or each == value))
                arrives = max((self._of_output(each, floor) for each in handed), default=0.0)
                for reader in self.reading(op, value):
                    hot = (made for made in reader.values if self.wrong(made, floor))
                    arrives = max([arrives, *(found.get(made, 0.0) for made in hot)])
                found[value] = arrives
        return found

    def wrong(self, value: str, floor: float) -> bool:
        """Whether a value is off by `floor` in the low model; unknown ones are."""
        seen = self.context.beside.get(value)
        return seen is None or seen.drift >= floor or seen.lost > 0 or seen.changed > 0

    def _of_output(self, value: str, floor: float) -> float:
        seen = self.context.beside.get(value)
        if seen is None:
            return 0.0
        if seen.lost:
            return math.inf
        return seen.drift if seen.drift >= floor else seen.changed

    def seen(self, op: Op) -> Beside | None:
        """What is known of the op's float result in the low model; of several, of the worst."""
        records = [self.context.beside[value] for value in op.values if value in self.context.beside]
        records = [each for each in records if is_float(each.format) or each.format.startswith("complex")]
        return max(records, key=lambda each: (each.lost, each.drift), default=None)
