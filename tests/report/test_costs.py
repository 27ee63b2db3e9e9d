"""What reports say of time and memory: predicted, never as if it were measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_audit.records import Cost, Memory, ModuleCost, OpCost, Report
from precision_audit.report import as_json, costs, phrases, render
from tests.report import sample

MEMORY = Memory(weights=4_000_000, activations=1_000_000, gradients=4_000_000, optimizer=8_000_000)
LOW = Memory(weights=2_000_000, activations=500_000, gradients=2_000_000, optimizer=4_000_000)
COST = Cost(
    device="h100", measured=False, seconds_high=2e-3, seconds_low=8e-4, seconds=1e-3, cast_seconds=5e-5, touchable=0.9,
    memory_high=MEMORY, memory_low=LOW, memory=replace(MEMORY, copies=2_000_000), capacity=80_000_000_000, batch=64,
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
        "µs, this plan 1 ms (2.00x as fast as fp32)"
    ) in text
    assert "90 % of fp32's time is in ops whose format can be chosen" in text
    assert "memory at the peak 17.00 MB all fp32, 8.50 MB plain bf16, 19.00 MB this plan" in text
    assert "largest batch in 80.00 GB: about 4096; 2048 all fp32 (example 64)" in text
    added = len(render(report(), "full").splitlines()) - len(render(report(None), "full").splitlines())
    assert added <= 7


def test_verbose_names_the_dearest_modules_and_parts() -> None:
    text = render(report(), "full", verbose=True)
    assert "predicted by module" in text
    rows = costs.module_rows(report())
    assert rows == [["net", "1.9 ms", "700 µs", "900 µs", "90 %"], ["head", "100 µs", "100 µs", "100 µs", "10 %"]]
    assert "casts 50 µs, optimizer's update 100 µs; bound by compute 90 %, launch 10 %" in joined(text)
    assert "gradients 4.00 MB, optimizer 8.00 MB, second copies of weights 2.00 MB" in joined(text)


def test_a_slower_plan_is_called_slower() -> None:
    assert "2.00x as slow as fp32" in costs.time(report(replace(COST, seconds=4e-3)))


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
