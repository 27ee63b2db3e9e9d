"""Whose word stands against a remedy: a rule turned off, a pin, a class that does the same; and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit import planning
from precision_audit.records import Evidence, Finding, Plan, Predicted, Report


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


@pytest.mark.parametrize(
    ("bound", "error", "holds"),
    [
        (0.0, 0.01, True),  # of any plan
        (0.02, 0.03, True),
        (0.02, 0.02, False),
        (0.02, 0.01, False),
        (0.02, 0.0, False),  # nothing runs low
        (0.02, None, True),  # nothing is known of it
    ],
)
def test_a_finding_holds_while_the_predicted_error_exceeds_its_bound(
    bound: float, error: float | None, holds: bool
) -> None:
    finding = Finding("PA999", "warning", "/mul#0", "", "spread", Evidence("OBSERVED", "sum"), bound=bound)
    predicted = None if error is None else Predicted(1.0, 1.0, 0.0, 0, error**2)
    plan = Plan("mine", "inference", "fp32", "fp16", (), (), predicted=predicted)
    assert planning._holding((finding,), plan) == ((finding,) if holds else ())


class Scaled(nn.Module):
    """A sine that no cast is worth, or the same in a model that has work for the low format."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.sin(self.layers(x))
        return y


@pytest.mark.parametrize(("layers", "told"), [(0, []), (8, [()])])
def test_what_a_format_costs_is_told_of_plans_that_pay_it(tmp_path: Path, layers: int, told: list[object]) -> None:
    """bf16 rounds to 2e-3, twice what is allowed here; but one op alone stays in fp32, between an fp32 input and an
    fp32 output."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nformats: {high: fp32, low: bf16}\nmode: inference\ntolerances: {relative_l2: 1.0e-3}\n"
        "rules:\n  - {name: linears, op: linear, class: safe-in-bf16}\n  - {name: rest, class: follow}\n"
    )
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    report = pa.audit(Scaled(layers), (x,), policy=file)
    assert [each.pins for each in report.findings if each.rule == "PA210"] == told
    assert ("bf16" in dict(report.plan.formats).values()) == (layers > 0)
