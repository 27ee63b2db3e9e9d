"""`list devices`: the overview with its ratios, one device in full, and what is refused."""

from __future__ import annotations

import re

import pytest

from precision_audit import cli
from precision_audit.hardware import DEVICES
from precision_audit.recipes import RECIPES


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["list", "devices", *arguments]) == 0
    return capsys.readouterr().out


def _cells(text: str) -> dict[str, list[str]]:
    """The cells of the overview, by device."""
    return {line.split()[0]: re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.split()[:1]}


@pytest.mark.parametrize(
    ("name", "ratios"),  # tf32, bf16, fp16 over fp32; fp8, fp4 over bf16; fp64 over fp32
    [
        ("p100", ["-", "emul.", "1", "-", "-", "0.5"]),
        ("v100", ["-", "emul.", "7.96", "-", "-", "0.5"]),
        ("a100", ["8", "16", "16", "-", "-", "1 (0.5)"]),
        ("h100", ["7.39", "14.8", "14.8", "2", "-", "1 (0.5)"]),
        ("b200", ["15", "30", "30", "2", "4", "0.49"]),
        ("rtx5090", ["1?", "2", "2", "2", "8", "0.016?"]),
        ("mi300x", ["4", "8", "8", "2", "-", "1 (0.5)"]),
        ("mi355x", ["emul.", "15.9", "15.9", "2", "4", "0.5"]),
        ("mps-m2-max", ["-", "?", "1?", "-", "-", "-"]),
        ("cpu-amx", ["-", "6.73", "1.55", "emul.", "-", "0.64"]),
    ],
)
def test_the_ratios_that_people_quote(capsys: pytest.CaptureFixture[str], name: str, ratios: list[str]) -> None:
    assert _cells(_printed(capsys))[name][-6:] == ratios


def test_the_overview_has_every_device_and_says_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(capsys)
    assert list(DEVICES) == [name for name in _cells(text) if name in DEVICES]
    assert _cells(text)["a100"][:6] == ["a100", "Ampere", "8.0", "80", "2039", "19.5"]
    assert _cells(text)["b300"][3] == "268?"
    assert "uncertain" in text and "list devices NAME" in text
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_the_page_of_one_device(capsys: pytest.CaptureFixture[str], name: str) -> None:
    text, row = _printed(capsys, name), DEVICES[name]
    assert text.startswith(f"{name}   {row.title}   (") and f"source: {row.source}" in text
    assert all(f"- {note}" in text for note in row.notes)
    for recipe in RECIPES.values():
        assert re.search(rf"^{recipe.backend} +{recipe.name} +(yes|no)\b", text, re.MULTILINE)


def test_a_page_in_figures(capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(capsys, "NVIDIA H100 80GB HBM3")
    assert "memory 80 GiB, 3350 GB/s, 2 µs a kernel launch (medium)" in text
    assert re.search(r"^tf32 +matrix +494\.7 +7\.39 +high$", text, re.MULTILINE)
    assert re.search(r"^transformer_engine +Float8BlockScaling +yes +needs CUDA 12\.9$", text, re.MULTILINE)
    assert re.search(r"^transformer_engine +NVFP4BlockScaling +no .*; h100 \(Hopper\) is 9\.0$", text, re.MULTILINE)
    assert "not there: mxfp8, fp6, mxfp4, nvfp4" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["devices", "h10o"], "device 'h10o' is unknown: did you mean h100?"),
        (["rules", "PA404"], "list rules PA404: only devices are shown one by one"),
        (["policies", "fp32"], "list policies fp32: only devices are shown one by one"),
    ],
)
def test_bad_names_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert cli.main(["list", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err and len(captured.err.splitlines()) == 1


def test_listing_devices_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from precision_audit.cli import listing; listing.render('devices'); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
