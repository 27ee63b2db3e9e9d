"""What a plan says of itself: prediction, error shares, reasons, and how long it takes to make."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from precision_audit.plan import plan, settle
from tests.sketches import FREE_IO, H100, POLICY, WIDE, Sketch, chain, formats


def test_predicted_seconds_are_those_of_ops_and_casts():
    sketch, y = chain(WIDE, "matmul", "relu", matmul="bf16", relu="fp32")
    made = sketch.plan(y)
    n, w = 4096 * 1024, 1024 * 1024
    bandwidth, waves = 0.92 * 3.35e12, 0.78 * 128 / 132  # 32 x 4 tiles of 128 x 256 on 132 multiprocessors
    product = 2e-6 + max(2 * n * 1024 / (989.4e12 * waves * 2048 / (2048 + 512)), 2 * (2 * n + w) / bandwidth)
    relu, cast = 2e-6 + 8 * n / bandwidth, 2e-6 + 6 * n / bandwidth
    assert made.predicted.seconds == pytest.approx(product + relu + 2 * cast)
    assert made.predicted.cast_seconds == pytest.approx(2 * cast)
    assert made.predicted.cast_bytes == 12 * n
    high = 2e-6 + max(2 * n * 1024 / (66.9e12 * waves * 4096 / (4096 + 512)), 4 * (2 * n + w) / bandwidth)
    assert made.predicted.seconds_high == pytest.approx(high + relu)


@pytest.mark.parametrize(("lam", "runs"), [(0.0, "bf16"), (1.0, "bf16"), (1e3, "fp32")])
def test_error_is_worth_what_lambda_says(lam, runs):
    sketch, y = chain(WIDE, "sin", "cos")
    shares = {"/sin#0": 1e-6, "/cos#0": 1e-6, "cast:x": 1e-6}
    made = sketch.plan(y, policy=FREE_IO, lam=lam, error_shares=shares)
    assert formats(made)[y] == runs
    assert made.predicted.error_share == pytest.approx(3e-6 if runs == "bf16" else 0.0)


def test_settle_says_why():
    sketch, y = chain(WIDE, "sin", "relu", "matmul", "relu", sin="fp32", matmul="bf16")
    made = sketch.plan(y)
    by_op = {decision.op: decision for decision in settle(sketch.decided().decisions, made)}
    assert by_op["/sin#0"].reason == "sketch"
    assert by_op["/relu#0"].chosen == "bf16"
    assert by_op["/relu#0"].reason == "plan: bf16 saves more than the cast of its input costs"
    assert by_op["/relu#1"].reason == "plan: a cast would cost more"


def test_settle_says_when_a_pin_could_not_be_kept():
    sketch = Sketch()
    y = sketch.op("sin", sketch.input("x"), runs="bf16")
    z = sketch.op("relu", y, runs="fp32", mutates="self")
    sketch.aliases.append((y, z))
    decided = sketch.decided()
    settled = settle(decided.decisions, sketch.plan(z))
    assert settled[0].chosen == "fp32" and "shares memory" in settled[0].reason and "bf16" in settled[0].reason


def test_equal_formats_plan_nothing():
    sketch, y = chain(WIDE, "matmul", matmul="fp32")
    made = sketch.plan(y, policy=replace(POLICY, low="fp32"))
    assert not made.casts and not made.folds and set(formats(made).values()) == {"fp32"}


def test_a_decision_is_not_needed_for_every_op():
    sketch, y = chain(WIDE, "matmul", matmul="bf16")
    bare = replace(sketch.decided(), decisions=())
    made = plan(sketch.graph(y), bare, POLICY, H100)
    assert formats(made)[y] == "fp32"


def large(kind, size, number, pins):
    rng = random.Random(0)
    sketch = Sketch()
    values = [sketch.input("x", *size)]
    for _ in range(number):
        sources = [values[-1]] if kind == "chain" else [rng.choice(values)]
        if kind == "random":
            sources.append(rng.choice(values))
        draw = rng.random()
        runs = "bf16" if draw < pins else "fp32" if draw < 2 * pins else ""
        values.append(sketch.op("relu" if len(sources) == 1 else "atan2", *sources, runs=runs))
    return sketch.graph(values[-1]), sketch.decided()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size", "pins"),  # of (8, 8) a cast costs 100 times an op's saving; of (1024, 1024) casts pay
    [
        ("chain", (8, 8), 0.0005),
        ("chain", (1024, 1024), 0.05),
        ("tree", (8, 8), 0.05),
        ("tree", (1024, 1024), 0.0005),
        ("random", (8, 8), 0.05),
        ("random", (1024, 1024), 0.0005),
    ],
)
def test_twenty_thousand_ops_take_about_a_second_and_grow_linearly(kind, size, pins):
    """0.4 to 1.5 s, as the machine is; 1 to 2.2 times what it takes that machine to write the records down."""
    seconds = {}
    for number in (5000, 20000):
        start = time.process_time()
        graph, decided = large(kind, size, number, pins)
        written = time.process_time() - start
        seconds[number] = min(_timed(graph, decided) for _ in range(2))
    assert seconds[20000] < 4 * written
    assert seconds[20000] < 7 * seconds[5000]


def _timed(graph, decided):
    start = time.process_time()
    plan(graph, decided, POLICY, H100)
    return time.process_time() - start
