"""The registry, and what all formats promise."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from precision_audit import report as reports
from precision_audit.records import InputError, Suppression
from tests.report import sample

FOLDER = Path(reports.__file__).parent
GOLDEN = Path(__file__).parent / "golden"


def test_every_file_is_a_format() -> None:
    assert reports.formats() == tuple(sorted(path.stem.removeprefix("as_") for path in FOLDER.glob("as_*.py")))
    assert {"full", "concise", "json", "markdown"} <= set(reports.formats())


@pytest.mark.parametrize("name", reports.formats())
def test_every_format_is_documented_and_has_a_suffix_of_its_own(name: str) -> None:
    module = importlib.import_module(f"precision_audit.report.as_{name}")
    assert module.__doc__ and module.render.__doc__
    for suffix in module.SUFFIXES:
        assert reports.for_file(f"out{suffix.upper()}") == name


@pytest.mark.parametrize("name", reports.formats())
def test_the_same_report_gives_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> float:
        raise AssertionError("a report read the clock")

    monkeypatch.setattr("time.time", forbidden)
    first, second = (reports.render(sample.report(), name) for _ in range(2))
    assert first == second
    assert first.endswith("\n") and not first.endswith("\n\n")


@pytest.mark.parametrize("name", reports.formats())
def test_no_absolute_path(name: str) -> None:
    report = sample.report()
    source = replace(report.findings[0].source, file="/home/someone/models/net.py")
    comment = Suppression("/home/someone/models/net.py", 3, 3, ("PA4",), "")
    found = replace(report.findings[0], source=source)
    for moved in (found, replace(found, suppression=comment)):
        text = reports.render(replace(report, findings=(moved,)), name, verbose=True)
        assert "net.py" in text or (moved.suppression and name == "concise")
        assert "/home" not in text


@pytest.mark.parametrize("name", reports.formats())
@pytest.mark.parametrize("part", ["verification", "decisions", "findings", "next_steps"])
def test_a_report_without_a_part_is_written(name: str, part: str) -> None:
    text = reports.render(replace(sample.report(), **{part: None if part == "verification" else ()}), name)
    assert "READY WITH CHANGES" in text


@pytest.mark.parametrize("name", sorted({*reports.formats()} - {"full"}))
def test_colours_are_for_terminals(name: str) -> None:
    assert "\033" not in reports.render(sample.report(), name, color=True)


@pytest.mark.parametrize(
    ("name", "golden"), [("full", "full.txt"), ("markdown", "markdown.md"), ("concise", "concise.log")]
)
def test_golden(name: str, golden: str) -> None:
    assert reports.render(sample.report(), name) == (GOLDEN / golden).read_text(encoding="utf-8")
    hazards = (GOLDEN / f"hazards_{golden}").read_text(encoding="utf-8")
    assert reports.render(sample.hazards(), name) == hazards


@pytest.mark.parametrize(("name", "near"), [("ful", "did you mean full"), ("markdwon", "markdown"), ("xyzzy", "json")])
def test_unknown_format(name: str, near: str) -> None:
    with pytest.raises(InputError, match=re.escape(near)):
        reports.render(sample.report(), name)


def test_unknown_suffix() -> None:
    with pytest.raises(InputError, match=r"\.docx.*\.json"):
        reports.for_file("report.docx")
