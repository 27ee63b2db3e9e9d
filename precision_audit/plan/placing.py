"""Casts and folds that a choice of formats needs, and no more.

Takes readings, labels and the format each op runs in; gives `Cast`s and `Fold`s in graph order. Every reader gets what
it needs by one cast per value, format and stretch; then the peephole drops each cast without which all outputs keep
their formats, because another operand makes a promoting op compute in the same format. Decides no format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from precision_audit.cost import roofline
from precision_audit.formats import bytes_of, is_float
from precision_audit.plan.labelling import CAPTURED, Labels
from precision_audit.plan.promotion import promoted, promotes, writes_in_place
from precision_audit.plan.reading import Reader, Readings, promoting_operands
from precision_audit.records import Cast, Fold, Op, Plan, Policy, Tensor


@dataclass(frozen=True, slots=True)
class _Shared:
    """A cast before it is final: of one value in one stretch."""

    value: str
    to: str
    bytes: int
    readers: list[Reader] = field(default_factory=list)


def place(reads: Readings, labels: Labels, runs: Sequence[str], policy: Policy) -> tuple[list[Cast], list[Fold]]:
    """Casts and folds when op i runs in `runs[i]`, a format's name or CAPTURED."""
    placer = _Placer(reads, labels, runs, policy)
    return placer.casts(), placer.folds()


def made_format(tensor: Tensor, runs: str, policy: Policy) -> str:
    """Format of an output of an op that runs in `runs`: only what was captured high changes."""
    return tensor.format if runs in ("", CAPTURED) or tensor.format != policy.high else runs


def unmet(
    reads: Readings, labels: Labels, runs: Sequence[str], policy: Policy, plan: Plan
) -> Iterator[tuple[str, str, str, str]]:
    """Readers that a plan leaves without the format they need: value, reader, need and what it would read. `runs` is
    "" for an op without a format of its own (it compares), which is not judged."""
    return _Placer(reads, labels, runs, policy).unmet(plan)


class _Placer:
    def __init__(self, reads: Readings, labels: Labels, runs: Sequence[str], policy: Policy) -> None:
        self._reads, self._labels, self._runs, self._policy = reads, labels, runs, policy

    def casts(self) -> list[Cast]:
        shared = [
            cast
            for value, tensor in self._reads.tensors.items()
            if is_float(tensor.format) and self._reads.maker[value] not in self._labels.folded
            for stretch in self._reads.stretches(value)
            for cast in self._needed(value, stretch)
        ]
        kept = self._peephole(shared)
        return [Cast(c.value, c.to, tuple(dict.fromkeys(r.key for r in c.readers)), c.bytes) for c in kept]

    def folds(self) -> list[Fold]:
        """Parameters in the formats they are read in; names of one storage are folded together."""
        tied = {name: names for names in self._reads.graph.storages for name in names}
        found: list[Fold] = []
        for position, op in enumerate(self._reads.graph.ops):
            if position not in self._labels.folded:
                continue
            names = [name for name in tied.get(op.key, (op.key,)) if name in self._reads.tensors]
            formats = {name: self._readers_by_format(name) for name in names}
            others = sorted({to for each in formats.values() for to in each} - {op.outputs[0].format})
            copy = len(others) > 1 or any(op.outputs[0].format in each for each in formats.values())
            for to in others:
                consumers = tuple(formats[op.key].get(to, ()))
                size = roofline.elements(op.outputs[0]) * bytes_of(to)
                if consumers or not copy:
                    first = op.key == next(name for name in names if not copy or formats[name].get(to))
                    found.append(Fold(op.key, to, consumers, copy, int(size) if copy and first else 0))
        return found

    def _readers_by_format(self, value: str) -> dict[str, list[str]]:
        """Readers of a parameter by the format they read; those that take any read it as captured."""
        found: dict[str, list[str]] = {}
        for reader in self._reads.readers.get(value, ()):
            to = self._need(value, reader) or self._reads.tensors[value].format
            found.setdefault(to, []).append(reader.key)
        return {to: list(dict.fromkeys(keys)) for to, keys in found.items()}

    def _needed(self, value: str, stretch: list[Reader]) -> list[_Shared]:
        tensor, made = self._reads.tensors[value], self._made(value)
        found: dict[str, _Shared] = {}
        for reader in stretch:
            to = self._need(value, reader)
            if to and to != made:
                found.setdefault(to, _Shared(value, to, roofline.cast_bytes(tensor, made, to))).readers.append(reader)
        return [found[to] for to in sorted(found)]

    def _made(self, value: str) -> str:
        return made_format(self._reads.tensors[value], self._runs[self._reads.maker[value]], self._policy)

    def _need(self, value: str, reader: Reader) -> str:
        """The format this reader must find the value in, "" if it does not matter."""
        captured = self._reads.tensors[value].format
        if reader.need == "output":
            return captured if self._policy.keep_io_types else ""
        at = (reader.position, value)
        if reader.need in ("any", "stays") or at in self._labels.lenient:
            return ""
        runs = self._runs[reader.position]
        return captured if runs in (CAPTURED, self._policy.high) or at in self._labels.rigid else runs

    # the peephole --------------------------------------------------------------------------------------------------

    def _peephole(self, shared: list[_Shared]) -> list[_Shared]:
        """Drop casts that promotion makes superfluous, dearest first; each is judged beside those that are left."""
        read = {(reader.position, cast.value): cast.to for cast in shared for reader in cast.readers}
        dropped: set[int] = set()
        for number in sorted(range(len(shared)), key=lambda i: (-shared[i].bytes, i)):
            cast = shared[number]
            if all(self._does_without(cast.value, reader, read) for reader in cast.readers):
                dropped.add(number)
                for reader in cast.readers:
                    del read[reader.position, cast.value]
        return [cast for number, cast in enumerate(shared) if number not in dropped]

    def _does_without(self, value: str, reader: Reader, read: dict[tuple[int, str], str]) -> bool:
        """Whether the reader makes the same formats when it reads the value uncast."""
        if reader.need != "match":
            return False
        op = self._reads.graph.ops[reader.position]
        if not promotes(op) or writes_in_place(op) or not any(is_float(tensor.format) for tensor in op.outputs):
            return False  # the last: fp16 beside a complex number would make a complex number of halves
        formats = [
            self._made(each) if each == value else read.get((reader.position, each), self._made(each))
            for each in promoting_operands(op, self._reads.tensors)
        ]
        return promoted(formats) == self._result(op, reader.position)

    def _result(self, op: Op, position: int) -> str:
        tensor = next(tensor for tensor in op.outputs if is_float(tensor.format))
        return made_format(tensor, self._runs[position], self._policy)

    # checking ------------------------------------------------------------------------------------------------------

    def unmet(self, plan: Plan) -> Iterator[tuple[str, str, str, str]]:
        stored = {fold.value: fold.to for fold in plan.folds if not fold.copy}
        made_beside: list[Cast | Fold] = [*plan.casts, *(fold for fold in plan.folds if fold.copy)]
        read = {(key, each.value): each.to for each in made_beside for key in each.consumers}
        for value, readers in self._reads.readers.items():
            made = stored.get(value) or self._made(value)
            for reader in readers:
                if reader.need != "output" and not self._runs[reader.position]:
                    continue
                need = self._reads.tensors[value].format if reader.need == "stays" else self._need(value, reader)
                has = read.get((reader.key, value), made)
                if need and has != need and not self._promoted_to_result(reader, read, stored):
                    yield value, reader.key, need, has

    def _promoted_to_result(self, reader: Reader, read: dict[tuple[str, str], str], stored: dict[str, str]) -> bool:
        if reader.need != "match":
            return False
        op = self._reads.graph.ops[reader.position]
        if not promotes(op) or writes_in_place(op) or not any(is_float(tensor.format) for tensor in op.outputs):
            return False  # the last: fp16 beside a complex number would make a complex number of halves
        formats = [
            read.get((op.key, each)) or stored.get(each) or self._made(each)
            for each in promoting_operands(op, self._reads.tensors)
        ]
        return promoted(formats) == self._result(op, reader.position)
