"""The device table: complete, in the right units, and errors that help."""

from __future__ import annotations

import pytest

from precision_audit.hardware import DEVICES, device
from precision_audit.records import InputError

GPUS = ("h100", "h200", "b200", "a100", "l40s", "t4", "v100", "mi300x")


def test_every_promised_device_is_there():
    assert set(DEVICES) == {*GPUS, "cpu-amx", "local"}


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_each_row_is_whole(name):
    row = device(name)
    peaks = dict(row.peaks)
    assert row.name == name and row.title and row.source
    assert row.kernels == ("cuda" if name in GPUS else "cpu")
    assert peaks["fp16"] > peaks["fp32"] > 1e9 < row.bandwidth
    assert 1e-7 < row.launch < 1e-4


@pytest.mark.parametrize(
    ("name", "format_", "peak"),  # dense tensor-core peaks as the vendors print them
    [("h100", "bf16", 989.4e12), ("h100", "fp8", 1978.9e12), ("a100", "tf32", 156e12), ("t4", "fp16", 65e12)],
)
def test_peaks_are_dense(name, format_, peak):
    assert dict(device(name).peaks)[format_] == pytest.approx(peak)


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "l40s", "mi300x"])
def test_fp8_is_twice_as_fast_as_bf16(name):
    peaks = dict(device(name).peaks)
    assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.02)


@pytest.mark.parametrize(("name", "format_"), [("v100", "bf16"), ("t4", "bf16"), ("a100", "fp8"), ("cpu-amx", "fp8")])
def test_formats_without_a_unit_have_no_peak(name, format_):
    assert format_ not in dict(device(name).peaks)


@pytest.mark.parametrize(("wrong", "right"), [("h10", "h100"), ("mi300", "mi300x"), ("cpu", "cpu-amx")])
def test_an_unknown_device_names_the_nearest(wrong, right):
    with pytest.raises(InputError, match=f"{wrong!r} is unknown: did you mean .*{right}"):
        device(wrong)


def test_names_are_read_in_any_case():
    assert device("H100") is DEVICES["h100"]
