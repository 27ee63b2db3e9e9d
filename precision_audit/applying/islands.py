"""Islands: modules that run as the plan has them when their inputs come in one format and their state is stored so.

Takes reads and what of the state can be stored low; gives the largest modules of that kind, each with the format it
takes. Inside an island eager PyTorch makes the planned formats by itself: the plan casts nothing between its ops, no
number written into its code depends on the format, and what follows an input's format follows the planned one. An
island needs a module that is called (it has ops of its own), since hooks run with the call.

What is no island is *loose*: its ops run in whatever their operands promote to, see `flow.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precision_audit import ops
from precision_audit.applying.reads import STATE, Read, Reads, floats
from precision_audit.formats import FORMATS
from precision_audit.records import Fold, Op


@dataclass(frozen=True, slots=True)
class Island:
    """A module and all below it. `takes` is "" where no float input decides anything."""

    module: str
    takes: str
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The islands, the folds that can be stored, and the ops outside."""

    islands: tuple[Island, ...]
    stored: tuple[Fold, ...]
    of_op: Mapping[str, Island]
    reasons: Mapping[str, str]  # why a module is no island


# Ops in which a number written in the code becomes an element of the result: beyond a format's range PyTorch raises.
_FILLS = frozenset({"full", "full_like", "new_full", "fill", "masked_fill", "where", "scalar_tensor", "index_fill"})


def layout(reads: Reads, storable: Iterable[str]) -> Layout:
    """The largest islands. `storable` names the parameters and buffers that the model really has; a fold is stored
    when all its readers are in islands, and an island needs its folds stored: what fails is taken out until nothing
    does."""
    tree, names = _Tree(reads), frozenset(storable)
    folds = {each.value: each for each in reads.plan.folds if not each.copy}
    lost = {value for value in folds if value not in names}
    while True:
        lost |= _tied(reads, lost)
        found = tree.largest("", lost)
        of_op = {key: island for island in found for key in island.ops}
        outside = {
            value
            for value in folds
            if value not in lost and any(read.op.key not in of_op for read in reads.readers.get(value, ()))
        }
        outside |= {value for value in reads.graph.outputs if value in folds and value not in lost}
        if not outside:
            stored = tuple(each for value, each in folds.items() if value not in lost)
            return Layout(tuple(found), stored, of_op, tree.reasons)
        lost |= outside


def _tied(reads: Reads, lost: set[str]) -> set[str]:
    """Names of one storage stay in one format."""
    return {name for names in reads.graph.storages if not lost.isdisjoint(names) for name in names}


class _Tree:
    """The modules of a graph by path."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._below: dict[str, list[Op]] = {"": []}
        self._children: dict[str, dict[str, None]] = {"": {}}
        self._called = {""}
        self._own: dict[str, list[Op]] = {}  # ops of a module itself
        self.reasons: dict[str, str] = {}  # why a module is no island
        for op in reads.computed:
            self._called.add(op.module)
            self._own.setdefault(op.module, []).append(op)
            path = ""
            self._below[""].append(op)
            for part in op.module.split(".") if op.module else ():
                parent, path = path, f"{path}.{part}" if path else part
                self._children[parent][path] = None
                self._children.setdefault(path, {})
                self._below.setdefault(path, []).append(op)

    def largest(self, path: str, lost: set[str]) -> list[Island]:
        if path in self._called:
            found = self._natural(path, lost)
            if isinstance(found, Island):
                return [found]
            self.reasons.setdefault(path, found)  # the first: later ones follow from it
        return [island for child in self._children[path] for island in self.largest(child, lost)]

    def _natural(self, path: str, lost: set[str]) -> Island | str:
        """The module as an island, or why it is none."""
        inside = self._below[path]
        keys = {op.key for op in inside}
        entering: list[Read] = []
        for op in inside:
            why = _differs_in_eager(op, self._reads) or self._writes_outside(op, keys)
            if why:
                return why
            for read in self._reads.of_op[op.key]:
                if self._reads.is_state(read.value):
                    if read.value in lost:
                        return f"{read.value} cannot be stored in {self._reads.plan.low}, since not all read it so"
                    if (read.value, op.key) in self._reads.given:
                        return f"{read.value} is read in two formats, and the module has it once"
                elif self._reads.makers[read.value].key not in keys:
                    entering.append(read)
                elif (read.value, op.key) in self._reads.given:
                    return f"the plan casts {read.value} for {op.key}, between two ops of one module"
        if not any(floats(self._reads, op) for op in inside):
            return "it makes no floats"
        if why := self._gives_back(path, inside, keys):
            return why
        takes = self._takes(path, inside, entering)
        if takes is None:
            return "its inputs are read in several formats"
        for op in inside:
            if op.follows and not self._follows_so(op, path, keys, takes):
                return f"{op.key} takes its format from a tensor that has another one than planned for it"
        return Island(path, takes, tuple(sorted(keys)))

    def _gives_back(self, path: str, inside: list[Op], keys: set[str]) -> str:
        """What a hook would cast at the end and must not: an input, which would be rounded by then; a tensor that the
        user's own code made low."""
        outputs = self._reads.graph.outputs
        makers = [self._reads.makers[value] for value in outputs if value in self._reads.makers]
        if not path and any(maker.kind == "input" for maker in makers):
            return "it gives back an input of its own"
        for value in (value for op in inside for value in floats(self._reads, op)):
            leaves = value in outputs or any(r.op.key not in keys for r in self._reads.readers.get(value, ()))
            if leaves and self._reads.tensors[value].format == self._reads.plan.low:
                return f"{value} is {self._reads.plan.low} by the user's own cast"
        return ""

    def _writes_outside(self, op: Op, keys: set[str]) -> str:
        """A hook's cast is a copy: what is written to it does not reach the caller's tensor."""
        written = [operand.value for operand in op.operands if op.mutates and operand.argument == op.mutates]
        classes = [members for members in self._reads.graph.aliases if not set(written).isdisjoint(members)]
        for value in (*written, *(value for members in classes for value in members)):
            maker = self._reads.makers.get(value)
            if maker is not None and maker.key not in keys and maker.kind not in STATE:
                return f"{op.key} writes to {value}, which is made outside"
        return ""

    def _takes(self, path: str, inside: list[Op], entering: list[Read]) -> str | None:
        """The one format of what enters: as it is read, and as the module's own ops follow it."""
        read = {self._reads.read(each.value, each.op.key) for each in entering if each.need != "any"}
        own = [op for op in inside if op.follows and op.module == path]
        found = read | {format_ for op in own for format_ in self._followed(op)}
        if len(found) > 1 or not found <= {self._reads.plan.high, self._reads.plan.low}:
            return None
        takes = next(iter(found), "")
        finer = {self._reads.read(each.value, each.op.key) for each in entering if each.need == "any"}
        return None if takes == self._reads.plan.low and self._reads.plan.high in finer else takes

    def _followed(self, op: Op) -> set[str]:
        """Planned formats of what the op makes in the example's format."""
        high = self._reads.plan.high
        return {self._reads.made(v) for v in floats(self._reads, op) if self._reads.tensors[v].format == high}

    def _follows_so(self, op: Op, path: str, keys: set[str], takes: str) -> bool:
        """Whether the op finds its planned format where it looks. Which tensor that is no graph says: one that its
        module is given. So all of those have to agree; where none of them is read (an argument of which only the
        format is looked at), all that passes between modules."""
        seen = {
            self._made_inside(read, keys, takes)
            for other in self._own[op.module]
            for read in self._reads.of_op[other.key]
            if self._passed(read)
        }
        if not seen and op.module != path:
            seen = {self._made_inside(read, keys, takes) for key in keys for read in self._reads.of_op[key]
                    if self._passed(read)} | ({takes} if takes else set())  # fmt: skip
        return seen <= self._followed(op)

    def _passed(self, read: Read) -> bool:
        """From one module to another, in the example's format."""
        maker = self._reads.makers[read.value]
        given = maker.kind == "input" or (maker.kind not in STATE and maker.module != read.op.module)
        return given and self._reads.tensors[read.value].format == self._reads.plan.high

    def _made_inside(self, read: Read, keys: set[str], takes: str) -> str:
        entering = self._reads.makers[read.value].key not in keys
        return takes if entering and takes else self._reads.made(read.value)


def _differs_in_eager(op: Op, reads: Reads) -> str:
    """Why eager PyTorch would not make the planned format from planned operands: the rewrite adapts some arguments,
    which stay as written here. "" where it does."""
    high, chosen = reads.plan.high, reads.formats.get(op.key, "")
    if op.region:
        return f"{op.key} runs in a region of the user's own ({op.region})"
    if op.key in reads.plan.autocast:
        return f"{op.key} runs in an autocast region of the plan's"
    if op.op in ops.LIKE and _like_differs(op, reads, chosen or high):
        return f"{op.key} takes another format than the tensor it is like"
    captured_high = any(tensor.format == high for tensor in op.outputs)
    if not captured_high or not chosen or chosen == high:
        return ""
    if not op.operands and not op.follows:
        return f"{op.key} makes a tensor in the default format"
    if not op.follows and any(value == high for name, value in op.attributes if name.endswith("dtype")):
        return f"{op.key} has a format written into it"
    if op.op in _FILLS and beyond(op, chosen):
        return f"a number of {op.key} is beyond the range of {chosen}"
    return ""


def beyond(op: Op, format_: str) -> bool:
    """Whether a finite number among the arguments is beyond the format's range."""
    limit = FORMATS[format_].max_finite
    numbers = (value for _, value in op.attributes if isinstance(value, (int, float)) and not isinstance(value, bool))
    return any(math.isfinite(value) and abs(value) > limit for value in numbers)


def _like_differs(op: Op, reads: Reads, chosen: str) -> bool:
    others = [operand.value for operand in op.operands if operand.argument == "other"]
    return any(reads.made(value) != chosen for value in others if value in reads.tensors)
