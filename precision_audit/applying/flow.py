"""What the ops between islands run in, and what islands must give so that nothing breaks.

Takes reads and a layout; gives the format each island gives out and the format every op outside the islands really
has. Starts from the plan's own casts at the islands' outputs. Then, as long as an op outside would raise (two formats
where it takes one), or run low where the plan keeps it high, the islands whose low values reach it give the high
format instead. With all of them doing so, the ops outside run as in the user's own model: that always works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from precision_audit import ops
from precision_audit.applying.islands import Island, Layout, beyond
from precision_audit.applying.reads import STATE, Reads, floats
from precision_audit.plan.promotion import promoted, promotes, writes_in_place
from precision_audit.plan.reading import promoting_operands
from precision_audit.records import Op


@dataclass(frozen=True, slots=True)
class Flow:
    """`gives` by island's module, "" for as it comes; `runs` by key of an op outside; `raised`: the model's own
    outputs need a cast to the high format."""

    gives: Mapping[str, str]
    runs: Mapping[str, str]
    raised: bool


def flow(reads: Reads, layout: Layout, gives: Mapping[str, str] | None = None) -> Flow:
    """Settle what each island gives, from the plan's own casts or from `gives`."""
    gives = dict(gives or {island.module: _asked(reads, island) for island in layout.islands})
    while True:
        run = _Run(reads, layout, gives)
        blamed = {module for module in run.blamed if gives[module] != reads.plan.high}
        if not blamed:
            return Flow(gives, run.runs, run.raised)
        gives.update(dict.fromkeys(blamed, reads.plan.high))


def _asked(reads: Reads, island: Island) -> str:
    """The one format that all readers outside want, where it is another than the island makes."""
    inside = set(island.ops)
    values = [value for key in island.ops for value in floats(reads, reads.ops[key])]
    wanted, made = set(), set()
    for value in values:
        outside = [read for read in reads.readers.get(value, ()) if read.op.key not in inside]
        formats = {reads.read(value, read.op.key) for read in outside if read.need != "any"}
        formats |= {reads.read(value, f"output:{i}") for i, each in enumerate(reads.graph.outputs) if each == value}
        if formats:
            wanted |= formats
            made.add(reads.made(value))
    if len(wanted) != 1 or wanted == made or not wanted <= {reads.plan.high, reads.plan.low}:
        return ""
    return next(iter(wanted))


class _Run:
    """One walk through the graph with given outputs of islands."""

    def __init__(self, reads: Reads, layout: Layout, gives: Mapping[str, str]) -> None:
        self._reads, self._layout, self._gives = reads, layout, gives
        self._high, self._low = reads.plan.high, reads.plan.low
        stored = {each.value: each.to for each in layout.stored}
        self._formats: dict[str, str] = {}  # of values as ops outside find them
        self._by_module: dict[str, set[str]] = {}  # what loose ops of a module read
        self.runs: dict[str, str] = {}
        self.blamed: set[str] = set()
        self.raised = False
        for op in reads.computed:
            if op.key not in layout.of_op:
                read = {each.value for each in reads.of_op[op.key] if not reads.is_state(each.value)}
                self._by_module.setdefault(op.module, set()).update(read)
        for op in reads.graph.ops:
            for value in floats(reads, op):
                self._formats[value] = stored.get(value, reads.tensors[value].format)
            if op.key in layout.of_op:
                self._leave(op)
            elif op.kind not in (*STATE, "input"):
                self._loose(op)
        self._outputs()

    def _leave(self, op: Op) -> None:
        gives = self._gives[self._layout.of_op[op.key].module]
        for value in floats(self._reads, op):
            made = self._reads.made(value)
            self._formats[value] = gives if gives and made in (self._high, self._low) else made

    def _loose(self, op: Op) -> None:
        values = floats(self._reads, op)
        matched = [r.value for r in self._reads.of_op[op.key] if r.need in ("match", "mixed")]
        formats = {self._formats[value] for value in matched}
        low = [value for value in matched if self._is_low(value)]
        made = ""
        if not promotes(op):  # a cast of the plan's that no hook makes; promotion makes it by itself
            read = [each.value for each in self._reads.of_op[op.key] if self._is_low(each.value)]
            self._blame([value for value in read if self._reads.given.get((value, op.key)) == self._high])
        if op.follows or op.op in ops.LIKE:
            self._blame([*low, *self._beside(op)])
        elif op.region or (op.fixed and not op.fixed.startswith(("explicit", "integer"))):
            self._blame(low)
        elif not op.fixed and promotes(op):
            made = self._promoted(op)
        elif len(formats) > 1:
            self._blame(low)
        elif not op.fixed:
            made = next(iter(formats), "")
        if made == self._low and self._must_not_run_low(op, values):
            self._blame(low)
        for value in values:
            captured = self._reads.tensors[value].format
            self._formats[value] = made if made and captured == self._high else captured
        if any(self._reads.tensors[value].format == self._high for value in values):
            self.runs[op.key] = self._formats[next(v for v in values if self._reads.tensors[v].format == self._high)]

    def _must_not_run_low(self, op: Op, values: list[str]) -> bool:
        planned = self._reads.formats.get(op.key, "")
        return bool(values) and (planned != self._low or beyond(op, self._low))

    def _promoted(self, op: Op) -> str:
        if writes_in_place(op):
            written = [o.value for o in op.operands if o.argument == op.mutates]
            return self._formats.get(written[0], "") if written else ""
        return promoted(self._formats[value] for value in promoting_operands(op, self._reads.tensors))

    def _beside(self, op: Op) -> list[str]:
        """Low values that an op may take its format from: those its module reads, or any where it reads none."""
        found = self._by_module.get(op.module) or set(self._formats)
        return [value for value in sorted(found) if self._is_low(value)]

    def _is_low(self, value: str) -> bool:
        """Low here and high in the user's own model."""
        return self._formats.get(value) == self._low and self._reads.tensors[value].format == self._high

    def _blame(self, values: list[str]) -> None:
        """The islands whose low values these are, or are made of."""
        seen: set[str] = set()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value in seen or not self._is_low(value):
                continue
            seen.add(value)
            maker = self._reads.makers[value]
            island = self._layout.of_op.get(maker.key)
            if island is not None:
                self.blamed.add(island.module)
            else:
                waiting += [read.value for read in self._reads.of_op[maker.key]]

    def _outputs(self) -> None:
        """Low values among the model's outputs where the plan gives high ones: the model's own hook raises them all,
        so none may be planned low."""
        wrong: list[str] = []
        right: list[str] = []
        for index, value in enumerate(self._reads.graph.outputs):
            if value in self._formats and self._formats[value] == self._low:
                planned = self._reads.read(value, f"output:{index}")
                (wrong if planned == self._high else right).append(value)
        if wrong and right:
            self._blame(wrong)
        self.raised = bool(wrong)


def loose(reads: Reads, layout: Layout) -> Iterator[Op]:
    """Ops outside all islands that make floats captured high."""
    for op in reads.computed:
        if op.key not in layout.of_op and any(tensor.format == reads.plan.high for tensor in op.outputs):
            yield op
