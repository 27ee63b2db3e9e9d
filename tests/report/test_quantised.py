"""The table of linears by schemes, and where it is shown."""

from __future__ import annotations

import math
from pathlib import Path

import torch

import precision_audit as pa
from precision_audit.quantise import SCHEMES
from precision_audit.records import Quantised
from precision_audit.report import as_full, as_json, quantised
from tests.rules import quantised_models as models


def audited(tmp_path: Path, text: str) -> pa.Report:
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    torch.manual_seed(0)
    x, policy = models.normal(32, 64), str(tmp_path / "mine.yaml")
    return pa.audit(models.Perceptron(), (x,), policy=policy, device="h100", verify=False)


def test_a_row_per_linear_with_the_swap_marked(tmp_path: Path) -> None:
    report = audited(tmp_path, models.ROWWISE)
    rows = quantised.rows(report)
    assert [row[0] for row in rows] == ["a", "b", "c"] and len(quantised.header()) == 1 + len(SCHEMES)
    assert all(row[2].endswith("*") and sum(cell.endswith("*") for cell in row) == 1 for row in rows)
    verbose, short = (as_full.render(report, verbose=each) for each in (True, False))
    assert quantised.TITLE in verbose and quantised.TITLE not in short
    assert as_json.read(as_json.render(report)).quantised == report.quantised != ()


def test_nothing_is_shown_where_nothing_was_measured(tmp_path: Path) -> None:
    report = audited(
        tmp_path, models.ROWWISE.replace("fp8-eligible, backend: torchao, recipe: rowwise", "safe-in-bf16")
    )
    assert report.quantised == () and quantised.lines(report) == ()


def test_a_cell_tells_what_the_whole_hides() -> None:
    assert quantised._cell(Quantised("a", "int8", 0.02, rows=0.25, columns=0.01)) == "2.0e-2 (rows 2.5e-1)"
    assert quantised._cell(Quantised("a", "int8", 0.02, rows=0.03, columns=0.5)) == "2.0e-2 (columns 5.0e-1)"
    assert quantised._cell(Quantised("a", "int8", math.inf)) == "lost" and quantised._cell(None) == "-"
