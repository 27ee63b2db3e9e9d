"""The part of a labelling problem that needs a flow: minimum cuts of all its components by SciPy's `maximum_flow`.

Takes costs and undirected edges between vertices 0..n-1; gives True where a vertex is low, with as many vertices high
as any optimum has.

SciPy's capacities are 32-bit integers and overflow silently (a capacity of 3e9 gave flow 0). So no capacity exceeds
what can flow through it at most, and each component gets a scale of its own at which all flows together stay below
2^29: edge and reverse edge then fit 32 bits too. Scaling rounds down, which loses small costs beside large ones; the
flow found is therefore feasible but not yet maximal, and is improved in rounds: what is left of the capacities is
scaled up again, to a bound that shrinks with the cut's remaining capacity, until nothing worth mentioning is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LIMIT = 2.0**29
# Of a component's bound: capacity left below it is noise. The first round leaves 1e-5, the second 1e-10.
_NOISE = 1e-9
_ROUNDS = 6
_NOTHING = 1e-200  # a bound below it would overflow the scale; nothing costs so little


@dataclass(slots=True)
class _Residual:
    """What can still flow: a directed edge per row, each with its reverse, sorted by tail then head."""

    nodes: int  # source and sink are the last two
    tail: Ints
    head: Ints
    left: Floats
    component: Ints  # of the edge


def minimum_cut(lean: Floats, a: Ints, b: Ints, ab: Floats, ba: Floats) -> Bools:
    """Labels of the cheapest cut: `lean` is cost(high) - cost(low), `ab` is paid when a is high and b low."""
    size = lean.size
    edges = coo_array((np.ones(a.size), (a, b)), shape=(size, size))
    components, found = connected_components(edges, directed=False)
    component: Ints = found.astype(np.int64)
    residual = _residual(lean, (a, b), (ab, ba), component)
    supply = np.bincount(component, np.maximum(-lean, 0.0), components)
    demand = np.bincount(component, np.maximum(lean, 0.0), components)
    bound = np.minimum(supply, demand)
    noise = np.maximum(_NOISE * bound, _NOTHING)
    for _ in range(_ROUNDS):
        bound, low = _augment(residual, bound, noise)
        if np.all(bound <= noise):
            # Edges within the noise count as full, so that ties go to high.
            low = _reaches_sink(residual, residual.left > noise[residual.component])
            break
    return low[:size]


def _residual(lean: Floats, ends: tuple[Ints, Ints], capacity: tuple[Floats, Floats], component: Ints) -> _Residual:
    size = lean.size
    (a, b), (ab, ba) = ends, capacity
    vertex = np.arange(size)
    source, sink = np.full(size, size), np.full(size, size + 1)
    none = np.zeros(size)
    tail = np.concatenate([a, b, source, vertex, vertex, sink])
    head = np.concatenate([b, a, vertex, source, sink, vertex])
    left = np.concatenate([ab, ba, np.maximum(-lean, 0.0), none, np.maximum(lean, 0.0), none])
    owner = component[np.concatenate([a, b, vertex, vertex, vertex, vertex])]
    order = np.lexsort((head, tail))
    return _Residual(size + 2, tail[order], head[order], left[order], owner[order])


def _augment(residual: _Residual, bound: Floats, noise: Floats) -> tuple[Floats, Bools]:
    """Send what flows at the scale that `bound` (the most that can still flow, by component) allows; gives the bound
    that is left and the cut it belongs to."""
    active = bound > noise  # the others have their cut
    scale = np.where(active, _LIMIT / max(1, int(active.sum())) / np.where(active, bound, 1.0), 0.0)
    component = residual.component
    capacity = np.floor(np.minimum(residual.left, bound[component]) * scale[component]).astype(np.int32)
    graph = _matrix(residual, capacity)
    source, sink = residual.nodes - 2, residual.nodes - 1
    flow = maximum_flow(graph, source, sink).flow
    flow.sort_indices()
    assert flow.nnz == capacity.size, "every edge has its reverse"
    unit = np.where(active, 1.0 / np.where(active, scale, 1.0), 0.0)
    residual.left = np.maximum(residual.left - flow.data * unit[component], 0.0)
    open_ = np.where(active[component], capacity > flow.data, residual.left > noise[component])
    low = _reaches_sink(residual, open_)
    crossing = ~low[residual.tail] & low[residual.head]
    left = np.bincount(component[crossing], residual.left[crossing], bound.size)
    return np.where(active, left, bound), low


def _reaches_sink(residual: _Residual, open_: Bools) -> Bools:
    """Nodes from which the sink can be reached over open edges."""
    tail, head = residual.tail[open_], residual.head[open_]
    backwards = coo_array((np.ones(tail.size), (head, tail)), shape=(residual.nodes, residual.nodes)).tocsr()
    reached = np.zeros(residual.nodes, dtype=np.bool_)
    reached[breadth_first_order(backwards, residual.nodes - 1, return_predecessors=False)] = True
    return reached


def _matrix(residual: _Residual, capacity: NDArray[np.int32]) -> csr_array:
    pointer = np.zeros(residual.nodes + 1, dtype=np.int32)
    np.cumsum(np.bincount(residual.tail, minlength=residual.nodes), out=pointer[1:])
    shape = (residual.nodes, residual.nodes)
    return csr_array((capacity, residual.head.astype(np.int32), pointer), shape=shape)
