"""The picture of a search: what stands in it, read from the SVG's own text."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from precision_audit.pictures import frontier, of_report
from precision_audit.records import Bound, Point, Search
from tests.pictures.test_of_report import report

BOUND = Bound("relative_l2", "relative_l2 <= 0.01", 0.01, 0.004, 0.4)
POINTS = (
    Point(1e-5, 2e-2, "fp16", 4, 4, (("float8dq-row", 2),), 1),
    Point(2e-5, 4e-3, "bf16", 3, 4, (), 2, chosen=True),
    Point(4e-5, 0.0, "bf16", 0, 4, (), 0),
)


def search(*points: Point) -> Search:
    return Search("met", (BOUND,), 1, 2e-5, 4e-5, 4e-3, points, (), (), ())


def test_formats_budget_and_the_plan_found_are_named(tmp_path: Path) -> None:
    text = frontier(search(*POINTS), tmp_path / "f.svg").read_text()
    for said in ("bf16 beside high", "fp16 beside high", "the plan found", "budget 0.01", "no error predicted", "µs"):
        assert said in text
    again = frontier(search(*POINTS), tmp_path / "g.svg").read_text()
    assert again == text


def test_one_plan_without_error_is_said(tmp_path: Path) -> None:
    assert "no plan runs anything low" in frontier(search(POINTS[2]), tmp_path / "f.svg").read_text()


def test_a_search_is_drawn_with_the_report(tmp_path: Path) -> None:
    import dataclasses

    found = dataclasses.replace(report(None, "inference"), search=search(*POINTS))
    drawn, why = of_report.draw(found, tmp_path / "seen")
    assert [path.name for path in drawn] == ["frontier.svg", "frontier.png"] and not why
    assert all(path.stat().st_size for path in drawn)
