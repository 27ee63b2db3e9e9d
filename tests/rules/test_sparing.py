"""Products that a remedy about accuracy need not keep high."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.records import Finding, Report
from tests.models import tensors


class Normed(nn.Module):
    """A variance in one pass of numbers near 8: it needs fp32, and the linear that made the numbers does not. What it
    adds is half a step of fp16 for numbers of about one, 2e-4 of the standard deviation that is divided by."""

    def __init__(self, decides: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mid, self.out = nn.Linear(64, 256), nn.Linear(256, 8)
        self.decides = decides

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = torch.relu(self.mid(x)) + 8
        mean = h.mean(-1, keepdim=True)
        variance = (h * h).mean(-1, keepdim=True) - mean**2
        y = self.out((h - mean) * torch.rsqrt(variance.clamp(min=0) + 1e-3))
        return (y, variance.argsort(0)) if self.decides else y


X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


def _cancellations(report: Report) -> list[Finding]:
    return [each for each in report.findings if each.rule == "PA204"]


def test_a_product_whose_rounding_adds_nothing_runs_low() -> None:
    model = Normed().eval()
    result = pa.convert(model, (X,), policy="fp16-inference")
    formats = dict(result.plan.formats)
    assert formats["mid/linear#0"] == "fp16" and formats["/sub#0"] == "fp32"
    found = _cancellations(result.report)
    assert [each.op for each in found] == ["/sub#0", "/sub#1"] and all(each.resolved for each in found)
    assert "/mul#0" in found[0].pins and not any("mid/linear#0" in each.pins for each in found)
    with torch.no_grad():
        wanted, given = model(X), result.module(X)
    assert float((given - wanted).norm() / wanted.norm()) < 2e-3


def test_what_a_decision_descends_from_that_has_changed_stays_high() -> None:
    model = Normed(decides=True).eval()
    result = pa.convert(model, (X,), policy="fp16-inference")
    assert "mid/linear#0" in _cancellations(result.report)[0].pins
    assert dict(result.plan.formats)["mid/linear#0"] == "fp32"
    with torch.no_grad():
        (_, wanted), (_, given) = tensors(model(X)), tensors(result.module(X))
    assert torch.equal(wanted, given)
