"""PA507: what the audit has not seen is a finding, with the user's line where there is one."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit import hardware, policy, rules
from precision_audit.policy.match import Matcher
from precision_audit.records import Finding, Graph
from precision_audit.rules import pa507_not_captured


def told(*notes: str) -> list[Finding]:
    graph, made = Graph((), (), "inference", notes=notes), policy.load("bf16-inference")
    nothing = MappingProxyType({})
    context = rules.Context(graph, made, hardware.device("local"), nothing, (), (), Matcher(made, graph), nothing)
    return list(pa507_not_captured.check(context))


@pytest.mark.parametrize(
    ("note", "message", "place", "remedy"),
    [
        (
            "captured along the path that the example takes at a b/net.py:12: if x.sum() > 0:: Could not guard",
            "captured along the path that the example takes: if x.sum() > 0:: Could not guard",
            ("a b/net.py", 12),
            "torch.where",
        ),
        ("captured along the path that the example takes: no line", "captured along the path", None, "torch.where"),
        ("the branches of cond run as captured: nothing inside them is converted", "the branches", None, "audit the"),
        ("dimension 0 of x is fixed at 8: the model depends on that size", "dimension 0 of x is", None, "each size"),
        ("evaluation mode was not captured: net.py:3: no", "evaluation mode was not captured", None, ".eval()"),
        ("something that nobody has thought of", "something that nobody", None, ""),
    ],
)
def test_each_note_of_the_capture(note: str, message: str, place: tuple[str, int] | None, remedy: str) -> None:
    (found,) = told(note)
    assert found.severity == "note" and found.message.startswith(message)
    assert (found.source and (found.source.file, found.source.line)) == place
    assert remedy in found.remedy and bool(remedy) == bool(found.remedy)


def test_the_fingerprint_holds_no_line_and_no_size() -> None:
    one = "captured along the path that the example takes at {}: if x > 0:: no"
    first, second = told(one.format("net.py:12"), one.format("other.py:99"))
    assert first.fingerprint == second.fingerprint
    assert (
        told("dimension 0 of x is fixed at 8: so")[0].fingerprint
        == told("dimension 0 of x is fixed at 9: so")[0].fingerprint
    )


class Stubborn(nn.Module):
    """Runs in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            raise RuntimeError("training only")
        y: torch.Tensor = self.fc(x)
        return y


def test_a_missing_evaluation_mode_is_told_once() -> None:
    report = pa.audit(Stubborn(), (torch.ones(16, 8),), policy="bf16-training")
    (found,) = [each for each in report.findings if each.rule == "PA507"]
    assert found.message.startswith("evaluation mode was not captured: ") and "training only" in found.message
    text = pa.report.render(report, "full")
    assert text.count("evaluation mode was not captured") == 1
    without = replace(report, findings=())
    assert "note: evaluation mode was not captured" in pa.report.render(without, "full")
