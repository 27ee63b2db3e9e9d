"""The benchmark's own arithmetic, and its plans on one small model."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from precision_audit.capture import capture, private_copy
from precision_audit.hardware import device
from tests.benchmarks.predicted_error import NOISE, Triple, listed, planned, policy_of, summary, triples


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16))


@pytest.mark.parametrize(
    ("predicted", "measured", "ratio"),
    [
        (2e-3, 1e-3, 2.0),
        (1e-3, 2e-3, 0.5),
        (0.0, 1e-3, 0.0),
        (1e-3, 0.0, None),
        (1e-3, math.inf, None),
        (1.0, NOISE, None),
    ],
)
def test_ratio_where_there_is_something_to_compare(predicted: float, measured: float, ratio: float | None) -> None:
    assert Triple("m", "bf16", "all low", predicted, measured, 0).ratio == ratio


def test_summary_counts_those_within() -> None:
    found = [Triple("m", "bf16", "random", ratio * 1e-3, 1e-3, 0) for ratio in (0.49, 0.5, 1.0, 2.0, 2.1)]
    found.append(Triple("m", "bf16", "random", 1e-3, 0.0, 0))
    whole = next(iter(summary(found)))
    assert "5 triples" in whole and "60.0%" in whole and "nothing to compare: 1" in whole
    assert "0.49" in whole and "2.10" in whole


def test_products_alone_are_low_where_products_are_asked_for() -> None:
    captured = capture(private_copy(_model()), (torch.randn(8, 32),), mode="inference")
    plan = planned(captured, policy_of("bf16"), device("local"), "products", ())
    formats = dict(plan.formats)
    assert (formats["0/linear#0"], formats["1/gelu#0"], formats["2/linear#0"]) == ("bf16", "fp32", "bf16")
    assert [(cast.value, cast.to) for cast in plan.casts if cast.value == "0/linear#0"] == [("0/linear#0", "fp32")]


def test_a_small_model_is_predicted_in_every_format_and_plan() -> None:
    found = triples("small", (_model(), (torch.randn(16, 32),), {}))
    assert [(t.format, t.plan) for t in found] == [
        (format, plan) for format in ("bf16", "fp8", "fp16") for plan in ("all low", "products", "random")
    ]
    for each in found:
        assert each.ratio is None or 0.5 <= each.ratio <= 2.0
        assert each.unknown == 0
    errors = {(t.format, t.plan): t.measured for t in found}
    assert errors["fp16", "all low"] < errors["bf16", "all low"] < errors["fp8", "all low"]


def test_the_suite_is_listed_without_what_has_no_error() -> None:
    names = list(listed("suite"))
    assert "mlp" in names and "bench_bert" in names
    assert "fp16_model" not in names and "integer_output" not in names
