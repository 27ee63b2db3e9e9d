"""The cheapest labelling of a graph's vertices with high and low, exactly: a minimum s-t cut.

Takes a `Problem` over numbered vertices: what each costs in either label, pins, ties, and charges that several readers
of one tensor share. Gives one label per vertex; `cost` prices any labelling and knows nothing of how the cut is found.
Never looks at ops, formats or hardware.

A charge that is paid once if the source is high and *any* of its readers is low (and its mirror image) is submodular,
so the optimum over all labellings is a minimum cut: an auxiliary vertex per shared charge joins its readers. A reader's
link to the auxiliary vertex needs no infinite capacity: the charge itself suffices, since splitting the two labels
saves that much at most. What is decided is contracted before any flow is sent (`contract.py`); what remains goes to
`flow.py`.

Ties. The optimal labellings are closed under union of their high sets, so there is one optimum whose high set contains
all others; that one is returned. Nothing is left for a tie-break by key, and the order of vertices cannot matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from precision_audit.plan.contract import FREE, HIGH, LOW, Work, contract, expand
from precision_audit.plan.flow import minimum_cut

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# What an edge of the network stands for; the tests drop one kind at a time.
KINDS = ("down", "up", "down: source", "down: reader", "up: reader", "up: source", "triangle")

DOWN, UP, BOTH = 0, 1, 2


class Group(NamedTuple):
    """One charge, paid once. DOWN: the source is high and any reader low. UP: the source is low and any reader high.
    BOTH: any reader differs from the source."""

    source: int
    readers: tuple[int, ...]
    charge: float
    way: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Vertices 0..n-1. `high` and `low` are costs by label, `pins` holds HIGH, LOW or FREE, `ties` pairs of vertices
    that share a label. Pins never contradict ties; costs are finite and charges not negative."""

    high: Floats
    low: Floats
    pins: NDArray[np.int8]
    ties: Sequence[tuple[int, int]]
    groups: Sequence[Group]


@dataclass(frozen=True, slots=True)
class Network:
    """Edges of the cut: `capacity` is paid when `tail` is high and `head` low. `node` maps a vertex of the problem to
    its node; the last nodes belong to shared charges. `lean` is cost(high) - cost(low) by node."""

    node: Ints
    lean: Floats
    pins: NDArray[np.int8]
    tail: Ints
    head: Ints
    capacity: Floats
    kind: NDArray[np.int8]


def solve(problem: Problem) -> Bools:
    """True where a vertex is low, in the cheapest labelling with as many vertices high as any optimum has."""
    net = network(problem)
    work = Work.of(net.lean, net.pins, net.tail, net.head, net.capacity)
    frames = contract(work)
    core = np.flatnonzero(work.label == FREE)
    if core.size:
        place = np.full(work.label.size, -1)
        place[core] = np.arange(core.size)
        low = minimum_cut(work.lean[core], place[work.a], place[work.b], work.ab, work.ba)
        work.label[core] = np.where(low, LOW, HIGH)
    expand(work, frames)
    return np.asarray(work.label[net.node] == LOW)


def cost(problem: Problem, low: Bools) -> float:
    """Price of a labelling in plain floats, straight from the definition of the charges."""
    total = float(np.where(low, problem.low, problem.high).sum())
    labels = low.tolist()
    for source, readers, charge, way in problem.groups:
        label = labels[source]
        if (way == BOTH or label == (way == UP)) and any(labels[reader] != label for reader in readers):
            total += charge
    return total


def permitted(problem: Problem, low: Bools) -> bool:
    """Whether a labelling keeps every pin and tie."""
    pinned = problem.pins != FREE
    return bool(np.all(low[pinned] == (problem.pins[pinned] == LOW)) and all(low[a] == low[b] for a, b in problem.ties))


def network(problem: Problem) -> Network:
    """The problem as edges: tied vertices become one node, each shared charge one auxiliary node."""
    node, nodes = _tied(problem)
    lean = np.bincount(node, problem.high - problem.low, minlength=nodes)
    pins = np.full(nodes, FREE, dtype=np.int8)
    pinned = problem.pins != FREE
    pins[node[pinned]] = problem.pins[pinned]
    assert np.all(pins[node[pinned]] == problem.pins[pinned]), "contradictory pins in one tie"
    edges = _edges(problem, node, nodes)
    return Network(
        node,
        np.concatenate([lean, np.zeros(edges.auxiliaries)]),
        np.concatenate([pins, np.full(edges.auxiliaries, FREE, dtype=np.int8)]),
        *edges[:4],
    )


class _Edges(NamedTuple):
    tail: Ints
    head: Ints
    capacity: Floats
    kind: NDArray[np.int8]
    auxiliaries: int


class _Readers(NamedTuple):
    counts: Ints  # by group
    node: Ints  # group after group


def _tied(problem: Problem) -> tuple[Ints, int]:
    size = problem.high.size
    if not len(problem.ties):
        return np.arange(size), size
    pairs = np.asarray(problem.ties, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    nodes, node = connected_components(graph, directed=False)
    return node.astype(np.int64), int(nodes)


def _edges(problem: Problem, node: Ints, nodes: int) -> _Edges:
    """All charges as edges; auxiliary nodes come after `nodes`."""
    groups = problem.groups
    sizes = np.fromiter((len(group[1]) for group in groups), np.int64, len(groups))
    source = node[np.fromiter((group[0] for group in groups), np.int64, len(groups))]
    charge = np.fromiter((group[2] for group in groups), np.float64, len(groups))
    way = np.fromiter((group[3] for group in groups), np.int64, len(groups))
    reader = node[np.fromiter(chain.from_iterable(group[1] for group in groups), np.int64, int(sizes.sum()))]
    owner = np.repeat(np.arange(len(groups)), sizes)
    apart = (reader != source[owner]) & (charge[owner] > 0)  # a reader tied to its source never differs from it
    reader, owner = reader[apart], owner[apart]
    count = np.bincount(owner, minlength=len(groups))
    start = np.cumsum(count) - count
    triangle = np.flatnonzero((way == BOTH) & (count == 2))
    three = _triangles(source[triangle], reader[start[triangle]], reader[start[triangle] + 1], charge[triangle])
    times = np.where(way == BOTH, 2, 1)
    times[triangle] = 0
    part = np.repeat(np.arange(len(groups)), times)
    second = np.zeros(part.size, dtype=np.bool_)
    second[1:] = part[1:] == part[:-1]
    up = (way[part] == UP) | second
    readers = _Readers(count[part], reader[_ragged(start[part], count[part])])
    star = _stars(source[part], readers, charge[part], up, nodes)
    return _Edges(
        np.concatenate([three.tail, star.tail]),
        np.concatenate([three.head, star.head]),
        np.concatenate([three.capacity, star.capacity]),
        np.concatenate([three.kind, star.kind]),
        star.auxiliaries,
    )


def _triangles(source: Ints, first: Ints, second: Ints, charge: Floats) -> _Edges:
    """Three nodes that are not all equal differ in exactly two of their three pairs: half the charge on each pair,
    both ways, and no auxiliary node."""
    tail = np.concatenate([source, first, source, second, first, second])
    head = np.concatenate([first, source, second, source, second, first])
    return _Edges(tail, head, np.tile(charge / 2, 6), np.full(tail.size, KINDS.index("triangle"), dtype=np.int8), 0)


def _stars(source: Ints, readers: _Readers, charge: Floats, up: Bools, nodes: int) -> _Edges:
    """A plain edge where one reader is left, else an auxiliary node between the source and its readers."""
    count, reader = readers
    owner = np.repeat(np.arange(source.size), count)
    shared = np.flatnonzero(count > 1)
    auxiliary = np.full(source.size, -1)
    auxiliary[shared] = nodes + np.arange(shared.size)
    alone = count[owner] == 1
    near = np.concatenate([source[owner[alone]], source[shared], auxiliary[owner[~alone]]])
    far = np.concatenate([reader[alone], auxiliary[shared], reader[~alone]])
    group = np.concatenate([owner[alone], shared, owner[~alone]])
    role = np.repeat(np.array([0, 1, 2]), [int(alone.sum()), shared.size, int((~alone).sum())])
    kind = np.array([[0, 1], [2, 5], [3, 4]], dtype=np.int8)[role, up[group].astype(np.int64)]
    tail, head = np.where(up[group], far, near), np.where(up[group], near, far)
    return _Edges(tail, head, charge[group], kind, int(shared.size))


def _ragged(start: Ints, count: Ints) -> Ints:
    """Indices start[i], start[i] + 1, ... of each run, one run after another."""
    offset = np.cumsum(count) - count
    return np.repeat(start - offset, count) + np.arange(int(count.sum()))
