"""What reports say of time and memory: predicted, never as if it were measured."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from precision_audit.records import Cost, Graph, Memory, ModuleCost, Op, OpCost, Report, Tensor
from precision_audit.report import as_json, costs, phrases, render
from tests.report import sample

MIB = 2**20
MEMORY = Memory(weights=4 * MIB, activations=MIB, gradients=4 * MIB, optimizer=8 * MIB)
LOW = Memory(weights=2 * MIB, activations=MIB // 2, gradients=2 * MIB, optimizer=4 * MIB)
COST = Cost(
    device="h100", measured=False, seconds_high=2e-3, seconds_low=8e-4, seconds=1e-3, cast_seconds=5e-5, touchable=0.9,
    memory_high=MEMORY, memory_low=LOW, memory=replace(MEMORY, copies=2 * MIB), capacity=80 * 2**30, batch=64,
    largest_batch=4096, largest_batch_high=2048, update_seconds=1e-4,
    ops=(OpCost("fc1/linear#0", 10, 10, 1.9e-3, 7e-4, 9e-4, "compute"), OpCost("/relu#0", 1, 8, 0, 0, 1e-4, "launch")),
    modules=(ModuleCost("", 2e-3, 8e-4, 1e-3), ModuleCost("net", 1.9e-3, 7e-4, 9e-4),
             ModuleCost("net.fc1", 1.9e-3, 7e-4, 9e-4), ModuleCost("head", 1e-4, 1e-4, 1e-4)),
)  # fmt: skip


def report(cost: Cost | None = COST) -> Report:
    return replace(sample.report(), cost=cost)


def joined(text: str) -> str:
    return " ".join(text.split())


def test_the_screen_says_time_memory_and_batch_in_a_few_lines() -> None:
    text = joined(render(report(), "full"))
    assert (
        "predicted, not measured: one training step on h100, from the device's figures: all fp32 2 ms, plain bf16 800 "
        "µs, this plan 1 ms: 2.00x as fast as fp32, 1.25x as slow as plain bf16"
    ) in text
    assert "90 % of fp32's time is in ops whose format can be chosen" in text
    assert "memory at the peak 17.00 MiB all fp32, 8.50 MiB plain bf16, 19.00 MiB this plan" in text
    assert "largest batch in 80.00 GiB: about 4096; 2048 all fp32 (example 64)" in text
    added = len(render(report(), "full").splitlines()) - len(render(report(None), "full").splitlines())
    assert added <= 7


def test_verbose_names_the_dearest_modules_and_parts() -> None:
    text = render(report(), "full", verbose=True)
    assert "predicted by module" in text
    rows = costs.module_rows(report())
    assert rows == [["net", "1.9 ms", "700 µs", "900 µs", "90 %"], ["head", "100 µs", "100 µs", "100 µs", "10 %"]]
    assert "casts 50 µs, optimizer's update 100 µs; bound by compute 90 %, launch 10 %" in joined(text)
    assert "gradients 4.00 MiB, optimizer 8.00 MiB, second copies of weights 2.00 MiB" in joined(text)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (4e-3, "2.00x as slow as fp32, 5.00x as slow as plain bf16"),
        (1e-3, "2.00x as fast as fp32, 1.25x as slow as plain bf16"),
        (4e-4, "5.00x as fast as fp32, 2.00x as fast as plain bf16"),
    ],
)
def test_the_plan_is_judged_against_both(seconds: float, told: str) -> None:
    made = report(replace(COST, seconds=seconds))
    assert costs.time(made).endswith(f": {told}")
    assert any(told in line for line in render(made, "markdown").splitlines())  # one line holds both
    written = json.loads(as_json.render(made))["cost"]
    assert written["speed_up_over_high"] == pytest.approx(2e-3 / seconds)
    assert written["speed_up_over_low"] == pytest.approx(8e-4 / seconds)


@pytest.mark.parametrize(("products", "told"), [("", ""), ("fp32", " (without TF32)"), ("tf32", " (products in TF32)")])
def test_it_is_said_how_fp32_is_priced_where_there_is_tf32(products: Any, told: str) -> None:
    assert costs.time(report(replace(COST, fp32_products=products))).startswith(f"all fp32 2 ms{told}, plain")


@pytest.mark.parametrize(
    ("formats", "baseline", "beside"),
    [
        (("fp32", "fp32"), "all fp32", "fp32"),
        (("bf16", "bf16"), "the model as given (bf16)", "the model as given"),
        (("fp32", "bf16"), "the model as given (bf16, fp32)", "the model as given"),
        (("int64", "fp32"), "all fp32", "fp32"),
    ],
)
def test_the_baseline_is_called_what_it_is(formats: tuple[str, str], baseline: str, beside: str) -> None:
    graph = Graph(tuple(_parameter(f"p{index}", name) for index, name in enumerate(formats)), (), "training")
    made = replace(report(), graph=graph)
    assert phrases.baseline(graph, "fp32") == baseline and phrases.beside(graph, "fp32") == beside
    text = joined(render(made, "full", verbose=True))
    assert f"{baseline} 2 ms" in text and f"2.00x as fast as {beside}" in text
    assert f"17.00 MiB {baseline}" in text and f"2048 {baseline}" in text
    assert costs.module_header(made)[1] == baseline
    assert ("errors are those against the model as given" in text) == (beside != "fp32")
    assert ("all fp32" in text) == (beside == "fp32")


def _parameter(key: str, format_: str) -> Op:
    return Op(key, "", key, "parameter", key, "", (), (Tensor(format_, (4,), (4,)),))


def test_measured_rates_are_no_measurement_of_the_model() -> None:
    said = costs.said(report(replace(COST, measured=True, device="local")))
    assert said == "predicted, not measured: one training step on local, from kernels measured here"


@pytest.mark.parametrize("name", ["full", "markdown"])
def test_without_a_cost_nothing_is_said(name: str) -> None:
    assert "predicted, not measured" not in render(report(None), name)
    assert "predicted, not measured" in render(report(), name)


def test_json_keeps_all_of_it() -> None:
    assert as_json.read(as_json.render(report())).cost == COST


def test_what_local_is_stands_in_the_heading() -> None:
    meta = replace(sample.report().meta, device="local", device_from="default", machine="AMD EPYC, measured")
    assert phrases.device(meta) == "device local (default: AMD EPYC, measured)"
    for name in ("full", "markdown"):
        assert phrases.device(meta) in render(replace(report(), meta=meta), name)


@pytest.mark.parametrize(("value", "text"), [(1.5, "1.5 s"), (2.346e-3, "2.35 ms"), (4e-6, "4 µs"), (3e-8, "0.03 µs")])
def test_durations(value: float, text: str) -> None:
    assert phrases.duration(value) == text
