"""Shrink a labelling problem without changing its optimum: decide what is decided, fold away what is simple.

Takes `Work`, the network of `cut.py` as arrays; changes it in place and gives the frames from which `expand` reads the
labels of the vertices that were folded away. Two exact steps alternate, each on all vertices at once:

- A vertex whose two costs differ by at least all it could pay to its neighbours has its label, whatever theirs are.
- A vertex with one or two neighbours is minimised out: its best answer to their four labellings is again a cost of
  theirs and one edge between them (submodular, so the edge's capacity is not negative). Chains, trees and ladders
  vanish this way in a logarithmic number of rounds; sent as flow, a long chain with dear casts takes seconds, and
  its small costs are lost when capacities are scaled to 32 bits.

Never approximates, but for float rounding: a difference below `_EPSILON` of what it was computed from is a tie, and
ties go to high.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HIGH, LOW, FREE, FOLDED = 0, 1, -1, 2

_EPSILON = 1e-14
# A round that settles a smaller share of the vertices left is not worth its passes over all edges; the flow takes over.
_WORTH = 0.05


@dataclass(slots=True)
class Work:
    """Undirected edges a < b, each pair once: `ab` is paid when a is high and b low, `ba` the other way round. `lean`
    is cost(high) - cost(low) of each vertex, `label` FREE until it is decided."""

    lean: Floats
    label: NDArray[np.int8]
    rank: Ints  # a fixed shuffle; ranked in chain order, a chain would lose one vertex per round
    a: Ints
    b: Ints
    ab: Floats
    ba: Floats

    @classmethod
    def of(cls, lean: Floats, pins: NDArray[np.int8], tail: Ints, head: Ints, capacity: Floats) -> Work:
        rank = np.random.default_rng(0).permutation(lean.size)
        work = cls(lean.copy(), pins.copy(), rank, tail, head, capacity, np.zeros_like(capacity))
        _merge(work)
        return work


class Frame(NamedTuple):
    """Vertices folded away in one round, with their (at most two) neighbours and the capacities to and from them."""

    vertex: Ints
    lean: Floats
    neighbour: Ints
    out: Floats
    into: Floats


def contract(work: Work) -> list[Frame]:
    """Settle pins and all that follows exactly; the vertices still FREE and the edges left need a flow."""
    frames: list[Frame] = []
    _settle(work)
    left = int((work.label == FREE).sum())
    while left:
        before = left
        _decide(work)
        frames.extend(_fold(work))
        left = int((work.label == FREE).sum())
        if before - left < _WORTH * before:
            break
    return frames


def expand(work: Work, frames: list[Frame]) -> None:
    """Label the folded vertices, last folded first: each takes its best answer to its neighbours' labels."""
    for frame in reversed(frames):
        low = work.label[frame.neighbour] == LOW
        if_high = frame.lean + (frame.out * low).sum(axis=1)
        if_low = (frame.into * ~low).sum(axis=1)
        slack = _EPSILON * (np.abs(frame.lean) + frame.out.sum(axis=1) + frame.into.sum(axis=1))
        work.label[frame.vertex] = np.where(if_high > if_low + slack, LOW, HIGH)


def _decide(work: Work) -> None:
    """Label every vertex that no neighbour could persuade."""
    size = work.lean.size
    out = np.bincount(work.a, work.ab, size) + np.bincount(work.b, work.ba, size)
    into = np.bincount(work.a, work.ba, size) + np.bincount(work.b, work.ab, size)
    slack = _EPSILON * (np.abs(work.lean) + out + into)
    free = work.label == FREE
    high = free & (-work.lean >= out - slack)
    low = free & ~high & (work.lean > into + slack)  # a tie goes to high
    work.label[high] = HIGH
    work.label[low] = LOW
    if high.any() or low.any():
        _settle(work)


def _settle(work: Work) -> None:
    """Turn the edges of decided vertices into costs of their neighbours."""
    size = work.lean.size
    at_a, at_b = work.label[work.a], work.label[work.b]
    paid = np.where(at_b == LOW, work.ab, 0.0) - np.where(at_b == HIGH, work.ba, 0.0)
    work.lean += np.bincount(work.a, paid, size)
    paid = np.where(at_a == LOW, work.ba, 0.0) - np.where(at_a == HIGH, work.ab, 0.0)
    work.lean += np.bincount(work.b, paid, size)
    _keep(work, (at_a == FREE) & (at_b == FREE))


def _fold(work: Work) -> list[Frame]:
    """Minimise out an independent set of vertices with one or two neighbours."""
    size = work.lean.size
    degree = np.bincount(work.a, minlength=size) + np.bincount(work.b, minlength=size)
    chosen = (work.label == FREE) & (degree > 0) & (degree <= 2)
    rivals = chosen[work.a] & chosen[work.b]
    a, b = work.a[rivals], work.b[rivals]
    chosen[np.where(work.rank[a] < work.rank[b], a, b)] = False
    vertex = np.flatnonzero(chosen)
    if not vertex.size:
        return []
    frame = _frame(work, chosen, vertex)
    _keep(work, ~(chosen[work.a] | chosen[work.b]))
    _pass_on(work, frame)
    work.label[vertex] = FOLDED
    return [frame]


def _frame(work: Work, chosen: Bools, vertex: Ints) -> Frame:
    """The neighbourhoods of the chosen vertices as arrays of two columns; a missing neighbour has capacity zero."""
    at_a, at_b = chosen[work.a], chosen[work.b]
    who = np.concatenate([work.a[at_a], work.b[at_b]])
    order = np.argsort(who, kind="stable")
    who = who[order]
    row = np.searchsorted(vertex, who)
    column = np.zeros(who.size, dtype=np.int64)
    column[1:] = who[1:] == who[:-1]
    table = np.zeros((3, vertex.size, 2))
    table[:, row, column] = np.stack(
        [
            np.concatenate([work.b[at_a], work.a[at_b]]),
            np.concatenate([work.ab[at_a], work.ba[at_b]]),
            np.concatenate([work.ba[at_a], work.ab[at_b]]),
        ]
    )[:, order]
    neighbour = table[0].astype(np.int64)
    alone = np.bincount(row, minlength=vertex.size) == 1
    neighbour[alone, 1] = neighbour[alone, 0]
    return Frame(vertex, work.lean[vertex], neighbour, table[1], table[2])


def _pass_on(work: Work, frame: Frame) -> None:
    """Charge the neighbours what the folded vertices would have cost them."""
    size = work.lean.size
    lean, out1, out2 = frame.lean, frame.out[:, 0], frame.out[:, 1]
    into1, into2 = frame.into[:, 0], frame.into[:, 1]
    high_high = np.minimum(lean, into1 + into2)
    high_low = np.minimum(lean + out2, into1)
    low_high = np.minimum(lean + out1, into2)
    low_low = np.minimum(lean + out1 + out2, 0.0)
    first, second = frame.neighbour[:, 0], frame.neighbour[:, 1]
    two = first != second
    work.lean -= np.bincount(first, low_high - high_high, size)
    work.lean -= np.bincount(second[two], (low_low - low_high)[two], size)
    between = np.maximum(high_low + low_high - high_high - low_low, 0.0)[two]
    work.a = np.concatenate([work.a, first[two]])
    work.b = np.concatenate([work.b, second[two]])
    work.ab = np.concatenate([work.ab, between])
    work.ba = np.concatenate([work.ba, np.zeros_like(between)])
    _merge(work)


def _merge(work: Work) -> None:
    """Order each edge's ends, add up edges between the same two vertices, drop those without capacity."""
    swap = work.a > work.b
    a, b = np.where(swap, work.b, work.a), np.where(swap, work.a, work.b)
    ab, ba = np.where(swap, work.ba, work.ab), np.where(swap, work.ab, work.ba)
    pair, index = np.unique(a * work.lean.size + b, return_inverse=True)
    work.a, work.b = pair // work.lean.size, pair % work.lean.size
    work.ab, work.ba = _sums(index, ab, pair.size), _sums(index, ba, pair.size)
    _keep(work, (work.a != work.b) & ((work.ab > 0) | (work.ba > 0)))


def _keep(work: Work, kept: Bools) -> None:
    work.a, work.b, work.ab, work.ba = work.a[kept], work.b[kept], work.ab[kept], work.ba[kept]


def _sums(index: Ints, values: Floats, size: int) -> Floats:
    return np.bincount(index, values, size).astype(np.float64, copy=False)
