"""The minimum cut against brute force and dynamic programming, with and without each of its parts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_audit.plan import contract, cut
from precision_audit.plan.contract import FREE, HIGH, LOW
from precision_audit.plan.cut import BOTH, DOWN, UP, Group, Problem, cost, permitted, solve

WHOLE = st.integers(0, 6).map(float)


def problem(high, low, groups, pins=None, ties=()):
    pinned = np.array(pins if pins is not None else [FREE] * len(high), dtype=np.int8)
    return Problem(np.array(high, float), np.array(low, float), pinned, ties, groups)


def optima(each: Problem):
    """Least cost over all permitted labellings, and the vertices that are low in every optimum."""
    best, always_low = 0.0, None
    for labels in itertools.product([False, True], repeat=each.high.size):
        low = np.array(labels)
        if not permitted(each, low):
            continue
        price = cost(each, low)
        if always_low is None or price < best:
            best, always_low = price, low
        elif price == best:
            always_low = always_low & low
    return best, always_low


@st.composite
def problems(draw, number=WHOLE):
    size = draw(st.integers(1, 8))
    vertex = st.integers(0, size - 1)
    pins = draw(st.lists(st.sampled_from([FREE, FREE, FREE, HIGH, LOW]), min_size=size, max_size=size))
    ties = draw(st.lists(st.tuples(vertex, vertex), max_size=2))
    root = list(range(size))
    for a, b in ties:  # pins never contradict ties: whoever builds a problem resolves that first
        root = [root[a] if each == root[b] else each for each in root]
    pinned = {root[i]: pin for i, pin in enumerate(pins) if pin != FREE}
    pins = [pinned.get(root[i], FREE) for i in range(size)]
    group = st.builds(
        Group, vertex, st.lists(vertex, min_size=1, max_size=4).map(tuple), number, st.sampled_from([DOWN, UP, BOTH])
    )
    costs = st.lists(number, min_size=size, max_size=size)
    return problem(draw(costs), draw(costs), draw(st.lists(group, max_size=12)), pins, ties)


@pytest.fixture(params=["contracted", "flow alone"], scope="module")
def way(request):
    """Small problems are settled by contraction before any flow is sent; so the flow is also tested by itself."""
    if request.param == "contracted":
        yield
        return
    patch = pytest.MonkeyPatch()
    patch.setattr(cut, "contract", lambda work: contract._settle(work) or [])
    yield
    patch.undo()


@given(each=problems())
@settings(max_examples=300, deadline=None)
def test_no_labelling_is_cheaper_and_ties_go_to_high(way, each):
    low = solve(each)
    best, always_low = optima(each)
    assert permitted(each, low)
    assert cost(each, low) == best
    assert low.tolist() == always_low.tolist()


@given(each=problems(st.floats(0, 1).flatmap(lambda m: st.integers(-9, 3).map(lambda e: m * 10.0**e))))
@settings(max_examples=200, deadline=None)
def test_no_labelling_is_cheaper_over_twelve_decades_of_costs(way, each):
    best, _ = optima(each)
    scale = max(1e-30, best, *each.high, *each.low, *(group.charge for group in each.groups))
    assert cost(each, solve(each)) <= best + 1e-9 * scale


# One vertex per reader or source that must be talked into the other label by the edge of that kind alone.
_NEEDS = {
    "down": problem([0, 9], [3, 0], [Group(0, (1,), 5, DOWN)]),
    "up": problem([3, 0], [0, 9], [Group(0, (1,), 5, UP)]),
    "down: source": problem([0, 9, 9], [3, 0, 0], [Group(0, (1, 2), 5, DOWN)]),
    "down: reader": problem([0, 9, 9], [3, 0, 0], [Group(0, (1, 2), 5, DOWN)]),
    "up: reader": problem([3, 0, 0], [0, 9, 9], [Group(0, (1, 2), 5, UP)]),
    "up: source": problem([3, 0, 0], [0, 9, 9], [Group(0, (1, 2), 5, UP)]),
    "triangle": problem([0, 9, 9], [3, 0, 0], [Group(0, (1, 2), 5, BOTH)]),
}


@pytest.mark.parametrize("kind", cut.KINDS)
def test_without_any_kind_of_edge_the_optimum_is_missed(kind, monkeypatch):
    each = _NEEDS[kind]
    best, _ = optima(each)
    assert cost(each, solve(each)) == best
    whole = cut.network

    def lacking(given):
        net = whole(given)
        kept = net.kind != cut.KINDS.index(kind)
        assert not kept.all()
        return cut.Network(net.node, net.lean, net.pins, net.tail[kept], net.head[kept], net.capacity[kept], net.kind)

    monkeypatch.setattr(cut, "network", lacking)
    assert cost(each, solve(each)) > best


@pytest.mark.parametrize("part", ["pins", "ties", "high", "low"])
def test_without_pins_ties_or_costs_the_answer_is_wrong(part):
    each = problem([2, 9, 9, 7], [5, 0, 1, 1], [Group(0, (1, 2), 1, BOTH)], [FREE, FREE, FREE, HIGH], [(1, 3)])
    best, _ = optima(each)
    assert cost(each, solve(each)) == best
    none = {"pins": np.full(4, FREE, dtype=np.int8), "ties": (), "high": np.zeros(4), "low": np.zeros(4)}
    fields = {name: getattr(each, name) for name in ("high", "low", "pins", "ties", "groups")}
    low = solve(Problem(**{**fields, part: none[part]}))
    assert not permitted(each, low) or cost(each, low) > best


@pytest.mark.parametrize(
    ("charge", "low"),
    [
        (3e9, [False, False]),  # beyond 32 bits: with SciPy alone the flow is 0
        (1e-12, [False, True]),
        (4.0, [False, True]),  # 0 prefers high by 5, 1 prefers low by 9
        (6.0, [True, True]),
    ],
)
def test_capacities_of_any_size(way, charge, low):
    each = problem([0, 9], [5, 0], [Group(0, (1,), charge, BOTH)])
    if charge == 3e9:
        each = problem([0, 9e9], [10e9, 0], [Group(0, (1,), charge, BOTH)])
        low = [False, True]
    assert solve(each).tolist() == low


def test_a_charge_next_to_nothing_does_not_disturb_what_costs_something(way):
    each = problem([0, 0], [0, 1], [Group(1, (0, 0), 4e-271, DOWN)], [LOW, FREE])
    assert solve(each).tolist() == [True, False]


def _chain_optimum(high, low, charge):
    """Least cost of a chain by dynamic programming over the label of the last vertex."""
    best = [high[0], low[0]]
    for h, x in zip(high[1:], low[1:], strict=True):
        best = [h + min(best[0], best[1] + charge), x + min(best[1], best[0] + charge)]
    return min(best)


@pytest.mark.parametrize("charge", [0.1, 1.0, 30.0, 1e5])
def test_a_long_chain_costs_what_dynamic_programming_says(charge):
    rng = np.random.default_rng(7)
    high, low = rng.random(3000), rng.random(3000)
    each = problem(high, low, [Group(i, (i + 1,), charge, BOTH) for i in range(2999)])
    assert cost(each, solve(each)) == pytest.approx(_chain_optimum(high, low, charge), rel=1e-12)


def test_a_dense_graph_costs_what_a_flow_of_whole_numbers_says():
    """The part that contraction leaves over: whole costs, so SciPy's flow is exact without any scaling."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    rng = np.random.default_rng(3)
    size = 300
    high, low = rng.integers(0, 50, size), rng.integers(0, 50, size)
    pairs = rng.integers(0, size, (1500, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    each = problem(high, low, [Group(int(a), (int(b),), 7.0, DOWN) for a, b in pairs])
    vertices = np.arange(size)
    tail = np.concatenate([pairs[:, 0], np.full(size, size), vertices])
    head = np.concatenate([pairs[:, 1], vertices, np.full(size, size + 1)])
    capacity = np.concatenate([np.full(len(pairs), 7), low, high]).astype(np.int32)
    graph = coo_array((capacity, (tail, head)), shape=(size + 2, size + 2)).tocsr().astype(np.int32)
    assert cost(each, solve(each)) == maximum_flow(graph, size, size + 1).flow_value


def test_vertices_in_any_order_get_the_same_labels():
    rng = np.random.default_rng(11)
    size = 60
    high, low = rng.integers(0, 5, size), rng.integers(0, 5, size)
    groups = [
        Group(int(rng.integers(size)), tuple(map(int, rng.integers(0, size, 2))), float(rng.integers(1, 4)), BOTH)
        for _ in range(90)
    ]
    order = rng.permutation(size)
    place = np.argsort(order)
    moved = [Group(int(place[g.source]), tuple(int(place[r]) for r in g.readers), g.charge, g.way) for g in groups]
    plain = solve(problem(high, low, groups))
    assert solve(problem(high[order], low[order], moved)).tolist() == plain[order].tolist()


def test_contradictory_pins_are_a_programming_error():
    with pytest.raises(AssertionError, match="contradictory"):
        solve(problem([0, 0], [0, 0], [], [HIGH, LOW], [(0, 1)]))
