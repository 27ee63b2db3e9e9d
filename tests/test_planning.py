"""Whose word stands against a remedy: a rule turned off, a pin, a class that does the same; and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit.records import Finding, Report


class Square(nn.Module):
    """300 squared is 90,000; fp16 ends at 65,504."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x * x / 1000.0
        return y


HEADER = "name: mine\nformats: {high: fp32, low: fp16}\nmode: inference\n"


def audited(folder: Path, rules: str, hazards: str = "", header: str = HEADER) -> Report:
    file = folder / "mine.yaml"
    file.write_text(f"{header}{hazards}rules:\n{rules}")
    return pa.audit(Square(), (torch.tensor([300.0, 2.0]),), policy=file)


def overflows(report: Report) -> list[Finding]:
    return [each for each in report.findings if each.rule == "PA101"]


FREE = "  - {name: rest, class: safe-in-fp16}\n"


@pytest.mark.parametrize(
    ("rules", "hazards", "resolved", "severity", "overridden", "runs_in"),
    [
        (FREE, "", True, "error", "", "fp32"),
        (FREE, "hazards: {PA101: warning}\n", True, "warning", "", "fp32"),
        (FREE, "hazards: {PA101: off}\n", False, "note", "turned off by policy FILE:4", "fp16"),
        (
            "  - {name: mine, op: mul, class: 'pin:fp16'}\n" + FREE,
            "",
            False,
            "error",
            "pinned to fp16 by policy FILE:5 mine",
            "fp16",
        ),
    ],
)
def test_a_remedy_that_is_overridden_leaves_its_finding_unresolved(
    tmp_path: Path, rules: str, hazards: str, resolved: bool, severity: str, overridden: str, runs_in: str
) -> None:
    report = audited(tmp_path, rules, hazards)
    (found,) = overflows(report)
    assert (found.resolved, found.severity) == (resolved, severity)
    assert found.overridden == overridden.replace("FILE", str(tmp_path / "mine.yaml"))
    assert dict(report.plan.formats)["/mul#0"] == runs_in
    assert found.open != resolved


def test_a_rule_turned_off_says_nothing_of_an_op_that_runs_high_all_the_same(tmp_path: Path) -> None:
    rules = "  - {name: high, op: [mul, div], class: keep-fp32}\n  - {name: rest, class: safe-in-fp16}\n"
    assert overflows(audited(tmp_path, rules)) != []
    assert overflows(audited(tmp_path, rules, "hazards: {PA101: off}\n")) == []


def test_the_line_is_that_of_the_file_that_turned_it_off(tmp_path: Path) -> None:
    """Inherited entries keep their own line."""
    parent = tmp_path / "parent.yaml"
    parent.write_text(HEADER + "hazards:\n  PA103: note\n  PA101: off\nrules:\n" + FREE)
    header = "name: child\nextends: parent.yaml\nhazards: {PA102: note}\n"
    report = audited(tmp_path, "  - {name: relus, op: relu, class: follow}\n", header=header)
    (found,) = overflows(report)
    assert found.overridden == f"turned off by policy {parent}:6"


def test_one_rule_turned_off_takes_no_other_rules_remedy(tmp_path: Path) -> None:
    """The op is protected by whichever rule still may."""
    report = audited(tmp_path, FREE, "hazards: {PA111: off, PA210: off}\n")
    assert dict(report.plan.formats)["/mul#0"] == "fp32"
