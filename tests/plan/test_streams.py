"""The residual stream of a pre-norm transformer: high where promotion pays for it, low where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_audit.plan.promotion import PROMOTING
from precision_audit.plan.streams import _SUMS
from tests.sketches import FREE_IO, H100, Sketch, casts, formats


def blocks(norm: str, number: int = 3) -> tuple[Sketch, str, list[str]]:
    """x + linear(norm(x)), `number` times, after a low embedding; a norm at the end."""
    sketch = Sketch("training")
    stream = sketch.op("sin", sketch.input("x"), runs="bf16")
    streams = []
    for i in range(number):
        normed = sketch.op("layer_norm", stream, runs=norm)
        branch = sketch.op("linear", normed, sketch.parameter(f"w{i}", 1024, 1024), runs="bf16")
        stream = sketch.op("add", stream, branch)
        streams.append(stream)
    return sketch, sketch.op("layer_norm", stream, runs=norm), streams


def test_a_stream_read_by_high_norms_is_high_and_its_branches_are_not_cast() -> None:
    sketch, last, streams = blocks("fp32")
    made = sketch.plan(last, policy=FREE_IO)
    assert {formats(made)[key] for key in streams} == {"fp32"}
    computed = [(value, to) for value, to, _ in casts(made) if "/" in value]
    downs = [(f"/layer_norm#{i}", "bf16") for i in range(3)]
    assert sorted(computed) == sorted([("/sin#0", "fp32"), *downs])  # not one per branch or per norm beside


def test_a_stream_read_by_low_norms_stays_low() -> None:
    sketch, last, streams = blocks("bf16")
    made = sketch.plan(last, policy=FREE_IO)
    assert {formats(made)[key] for key in streams} == {"bf16"}


@pytest.mark.parametrize("name", sorted(_SUMS))
def test_sums_promote(name: str) -> None:
    assert name in PROMOTING


@pytest.mark.parametrize(("kernels", "runs"), [("cpu", "fp32"), ("cuda", "bf16")])
def test_a_stream_read_by_free_norms_is_high_where_they_widen(kernels: str, runs: str) -> None:
    """rms_norm on a CPU casts within itself: a bf16 stream would be widened, and the result narrowed, per norm. Beside
    products of milliseconds the two take the same time, and the high stream has half the casts."""
    slow = replace(H100, kernels=kernels, peaks=(("fp32", 5e11), ("bf16", 1e12)))
    sketch = Sketch("inference")
    stream = sketch.op("sin", sketch.input("x"), runs="bf16")
    streams = []
    for i in range(3):
        normed = sketch.op("rms_norm", stream)
        branch = sketch.op("linear", normed, sketch.parameter(f"w{i}", 1024, 1024), runs="bf16")
        stream = sketch.op("add", stream, branch)
        streams.append(stream)
    made = sketch.plan(sketch.op("rms_norm", stream), policy=FREE_IO, hardware=slow)
    assert {formats(made)[key] for key in streams} == {runs}
