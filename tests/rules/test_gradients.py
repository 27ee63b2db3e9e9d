"""PA607 and PA309 as a reader meets them: their words, their numbers, and when they are silent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit import ops, policy
from precision_audit.records import Finding
from precision_audit.rules import derivatives

BARE = """name: bare
mode: training
formats: {{high: fp32, low: fp16}}
hazards: {{PA607: {severity}}}
rules:
  - {{name: rest, class: safe-in-fp16}}
"""


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x * self.scale, ord=3, dim=-1)


class Gelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: Tensor) -> Tensor:
        h = x * self.scale
        return 0.5 * h * (1.0 + torch.tanh(0.7978845608 * (h + 0.044715 * torch.pow(h, 3))))


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: Tensor) -> Tensor:
        h = x * self.scale
        return h / (1.0 + (h * h).pow(0.5))


SMALL = torch.tensor([[1e-4, 1e-4], [2e-4, 2e-4]])


def told(model: nn.Module, x: Tensor, severity: str = "error", low: str = "fp16", **options: Any) -> list[Finding]:
    made = policy.parse(BARE.format(severity=severity).replace("fp16", low), "bare.yaml")
    report = pa.audit(model, (x,), policy=made, device="cpu-amx", loss=lambda output: output.float().mean(), **options)
    return [finding for finding in report.findings if finding.severity != "note" or finding.rule == "PA607"]


def test_a_norm_says_what_it_divides_by() -> None:
    (finding,) = told(Norm(), SMALL)
    smallest = (2 * 1e-12) ** (1 / 3)  # of the first row
    assert finding.rule == "PA607" and finding.severity == "error" and finding.resolved
    assert f"its derivative divides by norm^2, down to {smallest**2:.2g} →" in finding.message
    assert finding.message.endswith("a gradient that is not finite in fp16, nor that of scale")
    numbers = dict(finding.evidence.numbers)
    assert (numbers["lost"], numbers["count"]) == (4.0, 4.0) and finding.pins == ("/linalg_vector_norm#0",)
    # the largest power of two that leaves every gradient finite in fp16, at most 2^16: they are below 1
    assert numbers["scale"] == 2.0**16


def test_bf16_has_the_range_for_it() -> None:
    assert told(Norm(), SMALL, low="bf16") == []


def test_a_forward_that_overflows_at_the_same_op_is_told_once() -> None:
    found = told(Gelu(), torch.tensor([[200.0, 100.0, -150.0]]))
    assert "PA607" not in {finding.rule for finding in found}
    assert any(finding.op == "/pow#0" and finding.resolved for finding in found)


def test_turned_off_it_is_a_note_and_nothing_is_kept_for_it() -> None:
    (finding,) = told(Norm(), SMALL, severity="off")
    assert finding.severity == "note" and not finding.resolved and finding.overridden


@pytest.mark.parametrize(("severity", "loud"), [("warning", "warning"), ("error", "error")])
def test_its_severity_is_the_policys(severity: str, loud: str) -> None:
    assert [finding.severity for finding in told(Norm(), SMALL, severity=severity)] == [loud]


def test_inference_says_nothing() -> None:
    report = pa.audit(Norm(), (SMALL,), policy="fp16-inference", device="cpu-amx")
    assert "PA607" not in {finding.rule for finding in report.findings}


def test_every_name_of_the_tables_is_an_op() -> None:
    names = {*derivatives.DIVIDES, *derivatives.MULTIPLIES, *derivatives.SPECIAL}
    assert [name for name in sorted(names) if ops.row(name) is None] == []
    assert not set(derivatives.DIVIDES) & set(derivatives.MULTIPLIES)


def test_a_power_says_how_far_it_reaches() -> None:
    (finding,) = [finding for finding in told(Root(), torch.tensor([[1e-4, 2e-4]])) if finding.rule == "PA607"]
    assert "its derivative multiplies by 0.5·x^-0.5, up to 5e+03 →" in finding.message  # 0.5 / √1e-8
