"""Which ops have a choice, and which must choose alike.

Takes readings, decisions, policy and swaps; gives `Labels`: one demand per op (captured, free, high, low, or a third
format) after everything that is a fact has been respected, and the pairs that share a label. Knows no costs.

Facts come before pins. Ops that share memory which is written in place have one format, and so have names of one
storage; where their pins disagree the captured format wins, because it is the one in which the memory was made, and a
swap among them is refused. Memory is read without a cast by `as_strided` and `view_as_*`, and by readers that take a
value as it was captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.plan.reading import Readings, promoting_operands
from precision_audit.policy.match import STATE
from precision_audit.records import Decision, Graph, Op, Policy, Refusal, Swap

CAPTURED, FREE, HIGH, LOW = "captured", "free", "high", "low"  # any other demand is the name of a third format
_STATE_KINDS = frozenset({"parameter", "buffer", "constant"})


@dataclass(slots=True)
class Labels:
    """`demand[i]` of op i. `ties` are pairs of op numbers with one label. `known` ops are high before any cut.
    `folded` are parameters whose other formats are made once, not at run time. Mixed operands, as (op, value):
    `lenient` ones are known high and read uncast; `rigid` ones must be read high, like the op's other statistics."""

    demand: list[str]
    ties: list[tuple[int, int]]
    folded: set[int]
    known: set[int] = field(default_factory=set)
    lenient: set[tuple[int, str]] = field(default_factory=set)
    rigid: set[tuple[int, str]] = field(default_factory=set)
    refusals: list[Refusal] = field(default_factory=list)


def labels(
    reads: Readings,
    decisions: Iterable[Decision],
    policy: Policy,
    swaps: Sequence[Swap],
    together: Iterable[Sequence[str]] = (),
) -> Labels:
    """Demands and ties of every op of the graph. `together` are keys of ops that are wanted in one format."""
    graph = reads.graph
    decided = {decision.op: decision for decision in decisions}
    demand = _demands(reads, decided, policy)
    folded = {
        i for i, op in enumerate(graph.ops)
        if op.kind in _STATE_KINDS and policy.mode == "inference" and op.fixed != "state"
    }  # fmt: skip
    made = Labels(demand, [*_ties(reads), *_wanted(graph, together)], folded)
    _pin_captured_reads(made, reads, _deciding(graph, decided, policy))
    _agree(made, graph, swaps)
    made.known = _known(made)
    _read_mixed(made, reads)
    made.known = _known(made)
    return made


def _known(made: Labels) -> set[int]:
    return {i for i, each in enumerate(made.demand) if each in (CAPTURED, HIGH)}


def _demands(reads: Readings, decided: Mapping[str, Decision], policy: Policy) -> list[str]:
    known: dict[tuple[int, str | None, bool], str] = {}
    demands = []
    for op, same in zip(reads.graph.ops, reads.same, strict=True):
        decision = decided.get(op.key)
        sort = (
            same,
            decision.chosen if decision else None,
            decision is not None and decision.classification == "fixed",
        )
        if sort not in known:
            known[sort] = _demand(op, decision, reads, policy)
        demands.append(known[sort])
    return demands


def _demand(op: Op, decision: Decision | None, reads: Readings, policy: Policy) -> str:
    """What one op is asked for by itself."""
    if policy.high == policy.low:
        return CAPTURED
    if op.kind == "input":
        return CAPTURED if policy.keep_io_types or not _can_change(op, policy) else FREE
    if op.kind in _STATE_KINDS:
        return FREE if policy.mode == "inference" and _can_change(op, policy) else CAPTURED
    if not ops.has_label(op) or decision is None or _makes_complex(op):
        return CAPTURED
    makes_floats = any(is_float(tensor.format) for tensor in op.outputs)
    fixed = decision.classification == "fixed" or not (_can_change(op, policy) and _told_its_format(op, reads))
    if makes_floats and fixed:
        return CAPTURED
    chosen = decision.chosen
    if chosen == policy.high:
        return HIGH
    if chosen == policy.low or decision.swapped:
        return LOW
    return chosen if chosen and makes_floats and is_float(chosen) else FREE


def _can_change(op: Op, policy: Policy) -> bool:
    """Whether any output may leave the captured format: it was captured high, nothing fixes it and none is complex."""
    return not op.fixed and any(tensor.format == policy.high for tensor in op.outputs) and not _makes_complex(op)


def _makes_complex(op: Op) -> bool:
    """Complex numbers have no low format, so what they are made of (`polar`, `complex`) is read as captured."""
    return any(tensor.format.startswith("complex") for tensor in op.outputs)


def _told_its_format(op: Op, reads: Readings) -> bool:
    """Whether something that a rewrite can change tells the op what to make: a float operand, a format argument, or
    (a factory without operands) an argument it can be given. `view_as_real` has the memory of complex numbers."""
    if any(is_float(reads.tensors[o.value].format) for o in op.operands if o.value in reads.tensors):
        return True
    return not op.operands or (op.follows and any(name.endswith("dtype") for name, _ in op.attributes))


def _ties(reads: Readings) -> list[tuple[int, int]]:
    """Pairs of ops with one label: alias classes, storages, and strided views with what they view."""
    graph = reads.graph
    pairs: list[tuple[int, int]] = []
    for members in (*graph.aliases, *graph.storages):
        numbers = [reads.maker[value] for value in members if value in reads.maker and is_float_value(reads, value)]
        pairs.extend(pairwise(numbers))
    for position, op in enumerate(graph.ops):
        if op.op == "as_strided" and op.operands and is_float_value(reads, op.operands[0].value):
            pairs.append((position, reads.maker[op.operands[0].value]))
    return pairs


def _wanted(graph: Graph, together: Iterable[Sequence[str]]) -> Iterator[tuple[int, int]]:
    groups = [tuple(keys) for keys in together]
    position = {op.key: i for i, op in enumerate(graph.ops)} if groups else {}
    for keys in groups:
        yield from pairwise(position[key] for key in keys)


def is_float_value(reads: Readings, value: str) -> bool:
    return value in reads.tensors and is_float(reads.tensors[value].format)


def _deciding(graph: Graph, decided: Mapping[str, Decision], policy: Policy) -> frozenset[str]:
    """Keys of ops without a float result that a remedy keeps high: what they are given must not be rounded before."""
    floats = {op.key for op in graph.ops if any(is_float(tensor.format) for tensor in op.outputs)}
    high = (key for key, each in decided.items() if each.chosen == policy.high and each.classification != "fixed")
    return frozenset(high) - floats


def _pin_captured_reads(made: Labels, reads: Readings, deciding: frozenset[str]) -> None:
    """Pin the makers of values that are read as captured; a folded parameter keeps its original for every reader that
    takes any format, is fixed, or is the model's output. A decision takes inputs as they were given."""
    given = {i for i, op in enumerate(reads.graph.ops) if op.kind in STATE}
    for value, readers in reads.readers.items():
        maker = reads.maker[value]
        for reader in readers:
            as_captured = reader.need == "stays" or (reader.key in deciding and maker in given)
            if maker in made.folded:
                fixed = reader.need == "output" or made.demand[reader.position] == CAPTURED
                as_captured = as_captured or reader.need == "any" or fixed
            if as_captured and made.demand[maker] != CAPTURED:
                made.demand[maker] = HIGH


def _agree(made: Labels, graph: Graph, swaps: Sequence[Swap]) -> None:
    """Give all members of a tie one demand."""
    swapped = {graph_position: swap for graph_position, swap in _positions(graph, swaps)}
    for members in _classes(made.ties):
        asked = {made.demand[i] for i in members} - {FREE}
        if not asked:
            continue
        agreed = asked.pop() if len(asked) == 1 else HIGH
        for i in members:
            if made.demand[i] != CAPTURED:
                made.demand[i] = HIGH if agreed == CAPTURED else agreed
            if i in swapped and made.demand[i] != LOW:
                other = next(graph.ops[j].key for j in members if j != i)
                reason = f"its output shares memory that is written in place with {other}, which cannot run low"
                swap = swapped[i]
                made.refusals.append(Refusal(swap.op, swap.module, swap.backend, reason))


def _positions(graph: Graph, swaps: Sequence[Swap]) -> list[tuple[int, Swap]]:
    by_key = {key: swap for swap in swaps for key in swap.ops}
    return [(i, by_key[op.key]) for i, op in enumerate(graph.ops) if op.key in by_key]


def _classes(ties: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Classes of tied numbers, each ascending."""
    root: dict[int, int] = {}

    def find(number: int) -> int:
        root.setdefault(number, number)
        while root[number] != number:
            root[number] = root[root[number]]
            number = root[number]
        return number

    for left, right in ties:
        low, high = sorted((find(left), find(right)))
        root[high] = low
    found: dict[int, list[int]] = {}
    for number in sorted(root):
        found.setdefault(find(number), []).append(number)
    return list(found.values())


def _read_mixed(made: Labels, reads: Readings) -> None:
    """Decide how the operands are read that an op takes high while it runs low: uncast if all of them are high before
    any cut (a foldable parameter is then not lowered), else like every other operand - but for an op with statistics
    that stay high, which takes no mixture and reads them all high."""
    mixed: dict[int, list[str]] = {}
    strict: set[int] = set()
    for value, readers in reads.readers.items():
        for reader in readers:
            if reader.need == "mixed":
                mixed.setdefault(reader.position, []).append(value)
            elif reader.need == "stays":
                strict.add(reader.position)
    pinned: set[int] = set()
    for position, values in mixed.items():
        makers = [reads.maker[value] for value in values]
        if all(maker in made.known or maker in made.folded for maker in makers):
            made.lenient.update((position, value) for value in values)
            pinned.update(maker for maker in makers if made.demand[maker] == FREE)
        elif position in strict:
            made.rigid.update((position, value) for value in values)
    for members in (*_classes(made.ties), *([maker] for maker in pinned)):
        if not pinned.isdisjoint(members):
            for i in members:
                made.demand[i] = HIGH if made.demand[i] == FREE else made.demand[i]


def promoted_anyway(made: Labels, reads: Readings, position: int, policy: Policy) -> frozenset[str]:
    """Operands of the promoting op `position` beside which another one, known high, makes it compute high."""
    op = reads.graph.ops[position]
    sure = {operand.value for operand in op.operands if reads.maker.get(operand.value) in made.known}
    if not sure:
        return frozenset()
    operands = promoting_operands(op, reads.tensors)
    sure = {value for value in operands if value in sure and reads.tensors[value].format == policy.high}
    return frozenset(value for value in operands if sure - {value})
