"""`local`: what stands for it, when it is measured, what is kept, and that the measuring measures."""

from __future__ import annotations

import json
import time

import pytest
import torch

from precision_audit.hardware import device, local, measuring
from precision_audit.records import InputError, Rate

SPEED = measuring.Speed(
    (Rate("linear", "fp32", 16, 2e9, 64), Rate("linear", "bf16", 16, 4e9, 64), Rate("copy", "fp32", 1e6, 5e9)),
    3e-6,
    5e9,
)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """As a user has it: no variable, a cache folder of its own; counts the measurements, which take no time."""
    monkeypatch.delenv(local.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    runs = []
    monkeypatch.setattr(measuring, "measure", lambda chip, scale: runs.append((chip, scale)) or SPEED)
    local._measured.cache_clear()
    yield runs
    local._measured.cache_clear()


def test_naming_a_device_measures_nothing(measured):
    assert device("local").name == "local"
    assert local.resolved(device("h100")) is device("h100")
    assert measured == []


def test_local_is_measured_once_and_kept(measured, capsys, tmp_path):
    first = local.resolved(device("local"))
    assert (first.name, first.rates, first.launch, first.bandwidth) == ("local", SPEED.rates, 3e-6, 5e9)
    assert dict(first.peaks) == {"fp32": 2e9, "bf16": 4e9, "fp64": 1e9}
    assert first.title == f"{local.processor()}, measured" and first.memory > 0
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "measuring" in said.err
    local._measured.cache_clear()  # another process
    assert local.resolved(device("local")) == first
    assert measured == [("cpu", 1)] and capsys.readouterr().err == ""
    (kept,) = (tmp_path / "cache" / "precision-audit").iterdir()
    assert kept.suffix == ".json"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rates": []}', '{"rates": [{"kind": 1}], "launch": 1}'])
def test_a_broken_cache_is_measured_again(measured, text):
    local.resolved(device("local"))
    (kept,) = local.cache_folder().iterdir()
    kept.write_text(text)
    local._measured.cache_clear()
    assert local.resolved(device("local")).rates == SPEED.rates
    assert len(measured) == 2 and json.loads(kept.read_text())["launch"] == 3e-6


def test_another_number_of_threads_is_another_machine(measured, monkeypatch):
    first = local._key("cpu", "x")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert local._key("cpu", "x") != first != local._key("cpu", "y")


def test_a_cache_that_cannot_be_written_is_said_once(measured, monkeypatch, capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert local.resolved(device("local")).rates == SPEED.rates
    assert local.resolved(device("local")).rates == SPEED.rates
    assert capsys.readouterr().err.count("cannot keep") == 1 and len(measured) == 1


def test_a_row_of_the_table_can_stand_for_local(measured, monkeypatch):
    monkeypatch.setenv(local.VARIABLE, "h100")
    row, h100 = local.resolved(device("local")), device("h100")
    assert (row.name, row.title, row.peaks, row.kernels) == ("local", "taken as h100", h100.peaks, "cuda")
    assert measured == []


@pytest.mark.parametrize(("name", "said"), [("h10", "h100"), ("local", "itself")])
def test_what_cannot_stand_for_local_is_refused(measured, monkeypatch, name, said):
    monkeypatch.setenv(local.VARIABLE, name)
    with pytest.raises(InputError, match=said) as raised:
        local.resolved(device("local"))
    assert local.VARIABLE in str(raised.value) and "\n" not in str(raised.value)


class Properties:
    total_memory, multi_processor_count, major, minor = 80_000, 114, 9, 0


@pytest.mark.parametrize(("name", "capability", "bf16"), [("H100", "9.0", 989.4e12), ("unheard of", "9.0", 4e9)])
def test_a_gpu_at_hand_takes_its_row(measured, monkeypatch, name, capability, bf16):
    """A card without a row has what was measured."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    row = local.resolved(device("local"))
    assert (row.kernels, row.capability, row.memory, row.processors) == ("cuda", capability, 80_000, 114)
    assert dict(row.peaks)["bf16"] == bf16 and row.rates == SPEED.rates
    assert measured == [("cuda", 8)]


def test_figures_have_two_digits():
    assert [measuring.rounded(each) for each in (123456.0, 1.26e-6, 9.96)] == [120000.0, 1.3e-6, 10.0]


def test_the_fastest_of_the_rounds_counts():
    """A run that is slow in two rounds of three is not slow: one to set up, two to see how long it takes, then two a
    round, of which the first does not count."""
    naps = iter([2e-2, 2e-2, 0, 2e-2, 0, 0, 2e-2, 0, 2e-2])

    def run():
        until = time.process_time() + 1e-3 + next(naps)
        while time.process_time() < until:
            pass

    (seconds,) = measuring._fastest([measuring.Point("p", "fp32", 1, 1, 1, run)], measuring._nothing, 3)
    assert 0.9e-3 < seconds < 5e-3 and next(naps, None) is None


@pytest.mark.parametrize(("seconds", "columns"), [(1e-3, 1024), (1e-1, 256)])
def test_products_are_wide_where_that_takes_no_time(monkeypatch, seconds, columns):
    """Matrix units starve on narrow products; without them a wide one would take long."""
    monkeypatch.setattr(measuring, "_stretch", lambda run, repeats, wait: seconds)
    points = measuring._points("cpu", 1, measuring._nothing)
    found = {(each.kind, each.size, each.depth): each.work for each in points if each.format == "fp32"}
    assert found["linear", 512, 1024] == 2 * 512 * 1024 * columns
    assert found["conv_last", 196, 64] == 2 * 196 * 64 * 64 * columns // 256
    assert found["norm", 2 * 2**14 * 4, 1] == 2 * 2**14 * 4


def test_a_format_without_a_kernel_is_left_out(monkeypatch):
    def refuses():
        raise RuntimeError("not implemented for 'Half'")

    points = [
        measuring.Point("copy", "fp32", 10, 1, 10, lambda: None),
        measuring.Point("copy", "fp16", 10, 1, 10, refuses),
    ]
    monkeypatch.setattr(measuring, "_points", lambda chip, scale, wait: iter(points))
    assert {each.format for each in measuring.measure().rates} == {"fp32"}


@pytest.mark.slow
def test_this_machine_can_be_measured():
    """Every kind of kernel in every format, in seconds; random state and gradient mode are as they were."""
    state, started = torch.get_rng_state(), time.process_time()
    speed = measuring.measure()
    assert time.process_time() - started < 30
    assert torch.equal(state, torch.get_rng_state()) and torch.is_grad_enabled()
    assert 1e-7 < speed.launch < 1e-2 and speed.bandwidth > 1e8
    kinds = {(each.kind, each.format) for each in speed.rates}
    for kind in ("linear", "matmul", "outer", "conv", "conv_last", "attention", "pointwise", "norm", "softmax", "copy"):
        assert {(kind, "fp32"), (kind, "bf16")} <= kinds
    assert {("cast", "fp32>bf16"), ("cast", "bf16>fp32")} <= kinds
    assert all(each.per_second == measuring.rounded(each.per_second) > 0 for each in speed.rates)
