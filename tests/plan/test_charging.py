"""The charged model's optimum: no assignment of formats is cheaper, no cast too many or too few."""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings

from precision_audit.plan import labelling, placing, plan, reading
from tests.oracle import Oracle, sketches
from tests.sketches import H100, POLICY


def no_second_question():
    """The cut alone, without the one that asks for high streams."""
    return mock.patch("precision_audit.plan.high_streams", lambda *_: None)


@given(sketches())
@settings(max_examples=100, deadline=None)
def test_a_high_stream_is_taken_where_it_is_cheaper_or_casts_less_in_the_same_time(drawn):
    sketch, outputs, keep = drawn
    policy = replace(POLICY, mode=sketch.mode, keep_io_types=keep)
    graph, decided = sketch.graph(*outputs), sketch.decided()
    with no_second_question():
        alone = plan(graph, decided, policy, H100).predicted
    made = plan(graph, decided, policy, H100).predicted
    assert made.seconds <= alone.seconds or (
        made.seconds <= alone.seconds * 1.005 and made.cast_bytes < alone.cast_bytes
    )


@given(sketches())
@settings(max_examples=250, deadline=None)
def test_no_assignment_is_cheaper(drawn):
    sketch, outputs, keep = drawn
    policy = replace(POLICY, mode=sketch.mode, keep_io_types=keep)
    graph, decided = sketch.graph(*outputs), sketch.decided()
    oracle = Oracle(graph, decided, policy)
    with no_second_question():
        made = dict(plan(graph, decided, policy, H100).formats)
    chosen = {root: made[graph.ops[i].key] for i, root in enumerate(oracle.root) if graph.ops[i].kind != "parameter"}
    best = oracle.cheapest()
    # how a parameter is stored follows from its readers: take the cheaper of its two labels
    stored = sorted({root for i, root in enumerate(oracle.root) if graph.ops[i].kind == "parameter"})
    labelled = itertools.product(["fp32", "bf16"], repeat=len(stored))
    spent = min(oracle.price({**chosen, **dict(zip(stored, each, strict=True))}) for each in labelled)
    assert spent == pytest.approx(best, rel=1e-9)


@given(sketches())
@settings(max_examples=250, deadline=None)
def test_every_cast_is_needed_and_none_is_missing(drawn):
    sketch, outputs, keep = drawn
    policy = replace(POLICY, mode=sketch.mode, keep_io_types=keep)
    graph, decided = sketch.graph(*outputs), sketch.decided()
    made = plan(graph, decided, policy, H100)
    reads = reading.readings(graph, H100.kernels, ())
    asked = labelling.labels(reads, decided.decisions, policy, ())
    runs = [demand if demand == "captured" else dict(made.formats)[op.key] for op, demand in _paired(graph, asked)]
    assert not list(placing.unmet(reads, asked, runs, policy, made))
    for cast in made.casts:
        without = replace(made, casts=tuple(each for each in made.casts if each is not cast))
        assert list(placing.unmet(reads, asked, runs, policy, without)), cast
    shared = [value for members in graph.aliases for value in members]
    once = [(cast.value, cast.to) for cast in made.casts if cast.value not in shared]
    assert len(once) == len(set(once))
    assert made.predicted.cast_bytes == sum(cast.bytes for cast in made.casts)


def _paired(graph, asked):
    return zip(graph.ops, asked.demand, strict=True)


@given(sketches())
@settings(max_examples=60, deadline=None)
def test_the_same_input_gives_the_same_plan(drawn):
    sketch, outputs, _ = drawn
    assert sketch.plan(*outputs) == sketch.plan(*outputs)
