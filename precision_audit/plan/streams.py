"""A second question to the planner: what if the sums that run through a model are high?

Takes readings, labels and prices; gives the labels in which every free sum is high that is read by an op asked high, or
by one that is dearer low, or None where there is no such sum. Chooses nothing: the planner solves both and keeps one.

Why: in a pre-norm transformer each block reads the stream by a norm (high) and adds a low branch to it. A high stream
promotes the branch for nothing, but promotion is free only beside an operand known high before the cut: charged in it,
"free if another operand is high" would not be submodular. Unasked, the cut takes a low stream and casts it per norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from precision_audit.plan.labelling import FREE, HIGH, Labels
from precision_audit.plan.promotion import writes_in_place
from precision_audit.plan.reading import Readings
from precision_audit.records import Policy

_SUMS = frozenset({"add", "sub"})  # both promote


def high_streams(reads: Readings, asked: Labels, policy: Policy, price: Callable[[int, str], float]) -> Labels | None:
    """Labels with the sums pinned high; ops that share their label with others are left alone. `price`: seconds of an
    op, by its position, in a format."""

    def high(position: int) -> bool:
        if asked.demand[position] != FREE:
            return asked.demand[position] == HIGH
        return price(position, policy.low) > price(position, policy.high)

    tied = {position for pair in asked.ties for position in pair}
    demand = list(asked.demand)
    for position, op in enumerate(reads.graph.ops):
        if demand[position] != FREE or position in tied or op.op not in _SUMS or writes_in_place(op):
            continue
        readers = [reader for value in op.values for reader in reads.readers.get(value, ())]
        if any(r.need == "match" and high(r.position) for r in readers):
            demand[position] = HIGH
    if demand == asked.demand:
        return None
    known = asked.known | {i for i, each in enumerate(demand) if each == HIGH}
    return replace(asked, demand=demand, known=known)
