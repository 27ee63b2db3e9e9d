"""A report says how much it has seen: no input, one batch, several."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit.report import as_full


class Normed(nn.Module):
    """An eps that fp16 does not hold, in a model that may have no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(16, 16), nn.LayerNorm(16, eps=1e-12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.fc(x))
        return y


def test_without_weights_nothing_is_run_and_only_what_is_proved_is_found() -> None:
    with torch.device("meta"):
        model = Normed()
    report = pa.audit(model, (torch.ones(4, 16, device="meta"),), policy="fp16-inference")
    assert report.meta.notes[0].startswith("no input was run, so confidence is low")
    assert {finding.evidence.basis for finding in report.findings} <= {"PROVED"}
    text = as_full.render(report)
    assert "note: no input was run, so confidence is low" in text
    assert "may reach further" not in text


@pytest.mark.parametrize(("batches", "said"), [(0, True), (2, False)])
def test_with_one_batch_it_says_that_others_may_reach_further(batches: int, said: bool) -> None:
    calibration = [(torch.randn(4, 16),) for _ in range(batches)]
    report = pa.audit(Normed(), (torch.randn(4, 16),), policy="fp16-inference", calibration=calibration)
    assert report.meta.batches == batches + 1
    assert not any("no input was run" in note for note in report.meta.notes)
    assert ("(other inputs may reach further)" in as_full.render(report)) == said
    assert (f"{batches + 1} batches in all" in as_full.render(report)) != said
