"""The benchmark's own arithmetic, and its claim about casts at toy sizes. Times need a quiet machine and no test."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.benchmarks import versus_autocast
from tests.benchmarks.models import MODELS, SMALL
from tests.benchmarks.versus_autocast import CountCasts, Measured, all_casts, judge, measure, ratio


def test_casts_and_bytes_are_those_executed() -> None:
    values = torch.randn(10)
    with CountCasts() as counter:
        values.float()  # nothing to do
        values.half().bfloat16()
        torch.ops.aten.to.dtype(values, torch.float64)
        values.long().float()  # not between floats
        values.clone()
    assert (counter.placed, counter.inner) == (3, 0)
    assert counter.bytes == 10 * ((4 + 2) + (2 + 2) + (4 + 8))


def test_an_op_s_own_casts_are_counted_apart() -> None:
    values, gain = torch.randn(4, 8).bfloat16(), torch.ones(8).bfloat16()
    with CountCasts() as counter:
        F.rms_norm(values, (8,), gain, 1e-5)
    assert counter.placed == 0 and counter.inner >= 0


def test_autocast_s_casts_are_counted_as_placed() -> None:
    linear, values = torch.nn.Linear(8, 4), torch.randn(2, 8)
    with torch.no_grad(), CountCasts() as counter, torch.autocast("cpu", torch.bfloat16):
        linear(values)
    assert (counter.placed, counter.inner) == (3, 0)  # input, weight, bias
    assert counter.bytes == (16 + 32 + 4) * (4 + 2)


@pytest.mark.parametrize("name", MODELS)
def test_models_take_sizes(name: str) -> None:
    module, args = MODELS[name](0, **SMALL[name])
    with torch.no_grad():
        output = versus_autocast.first(module(*args))
    assert torch.isfinite(output).all() and output.std() > 0.1


def test_ratio_is_taken_within_a_round() -> None:
    measured = {"a": Measured(seconds=[2.0, 40.0, 3.0]), "b": Measured(seconds=[1.0, 10.0, 1.0])}
    assert ratio(measured, "a", "b") == (3.0, 0.5)  # ratios 2, 4, 3: quartiles 2.5 and 3.5


def test_judge_names_what_is_missed() -> None:
    def one(casts: int, seconds: float, error: float) -> Measured:
        return Measured(casts=casts, seconds=[seconds], errors=[error])

    good = {
        "autocast": one(40, 1.0, 1.0),
        "all bf16": one(0, 0.75, 2.0),
        "converted": one(10, 0.8, 1.5),
        "stream high": one(20, 0.9, 1.0),
    }
    assert [row[-1] for row in judge({"good": good})] == ["met"] * 7
    bad = good | {"converted": one(11, 1.1, 1.5), "stream high": one(20, 1.04, 1.06)}
    rows = judge({"good": good, "bad": bad})
    assert [row[-1] for row in rows] == ["MISSED"] * 7
    assert rows[-1][0].endswith("mean 1.07")  # sqrt(1.25 / 1.1) = 1.066


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_makes_a_quarter_of_autocast_s_casts(name: str) -> None:
    with torch.no_grad():
        measured = measure(name, SMALL[name], list(versus_autocast.WAYS), rounds=1, seeds=1)
    assert measured["fp32"].casts == 0 and measured["fp32"].error < 1e-5
    assert measured["converted"].casts <= measured["autocast"].casts / 4
    assert all_casts(measured["converted"]) < all_casts(measured["autocast"])
    assert measured["converted"].error < 2 * measured["all bf16"].error
