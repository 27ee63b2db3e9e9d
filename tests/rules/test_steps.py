"""Steps and thresholds that a rounded number falls on the other side of, and masks that look like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from tests.models import tensors


class Around(nn.Module):
    """Numbers around zero with the error of a product, 0.2 % of which change their sign in bf16; then `function`."""

    def __init__(self, function: Callable[[Around, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.proj, self.out = nn.Linear(32, 32, bias=False), nn.Linear(32, 8)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.proj(x))


X = torch.randn(256, 32, generator=torch.Generator().manual_seed(0))

# What is made of h, and the op that decides. An output of signs is off by 2 * sqrt(0.002) = 9 %, one flag in 500.
STEPPING: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "sign": (lambda _, h: torch.sign(h), "/sign#0"),
    "sign before a product": (lambda model, h: model.out(torch.sign(h)), "/sign#0"),
    "sgn": (lambda _, h: torch.sgn(h), "/sgn#0"),
    "heaviside": (lambda _, h: torch.heaviside(h, torch.tensor(0.5)), "/heaviside#0"),
    "where": (lambda _, h: torch.where(h > 0, 1.0, -1.0), "/gt#0"),
    "flag made a number": (lambda model, h: model.out((h > 0).to(h.dtype)), "/gt#0"),
    "filled": (lambda model, h: model.out(torch.zeros_like(h).masked_fill(h > 0, 1.0)), "/gt#0"),
}
FLAGS: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "greater than a number": (lambda _, h: h > 0, "/gt#0"),
    "greater than another": (lambda _, h: h >= h.mean(-1, keepdim=True), "/ge#0"),
    "sign bit": (lambda _, h: torch.signbit(h), "/signbit#0"),
    "within": (lambda _, h: (h > 0) & (h < 0.3), "/gt#0"),
}
CONTINUOUS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "relu by a mask": lambda model, h: model.out(h * (h > 0)),
    "relu by where": lambda model, h: model.out(torch.where(h > 0, h, torch.zeros_like(h))),
    "relu by a fill": lambda model, h: model.out(h.masked_fill(h < 0, 0.0)),
    "threshold": lambda model, h: model.out(nn.functional.threshold(h, 0.0, 0.0)),
    "elu by where": lambda model, h: model.out(torch.where(h > 0, h, torch.expm1(h))),
    "huber": lambda _, h: torch.where(h.abs() < 1, 0.5 * h * h, h.abs() - 0.5),
    "signed root": lambda model, h: model.out(torch.sign(h) * h.abs().sqrt()),
    "soft threshold": lambda model, h: model.out(torch.sign(h) * torch.relu(h.abs() - 0.1)),
}
PADDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "multiplied": lambda h, mask: h * (mask > 0),
    "filled": lambda h, mask: torch.softmax(h.masked_fill(mask == 0, -1e4), -1),
    "lengths": lambda h, mask: h.sum(-1) / mask.sign().sum(-1),
}


def _decided(report: pa.Report) -> dict[str, str]:
    return {each.op: each.severity for each in report.findings if each.rule == "PA206"}


@pytest.mark.parametrize("name", STEPPING)
def test_a_step_that_numbers_fall_off_is_named_and_mended(name: str) -> None:
    function, decider = STEPPING[name]
    model = Around(function).eval()
    result = pa.convert(model, (X,))
    assert _decided(result.report) == {decider: "warning"}
    with torch.no_grad():
        (wanted,), (given,) = tensors(model(X)), tensors(result.module(X))
    assert float((given - wanted).norm() / wanted.norm()) < 1e-2
    (plain,) = [each.plain_relative_l2 for each in result.report.verification.outputs]
    assert plain > 1e-2


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_change_are_told(name: str) -> None:
    """Fewer than one in a hundred: a note, whose remedy is applied all the same."""
    function, decider = FLAGS[name]
    model = Around(function).eval()
    result = pa.convert(model, (X,))
    assert _decided(result.report) == {decider: "note"}
    assert torch.equal(model(X), result.module(X))


@pytest.mark.parametrize("policy", ["bf16-inference", "fp16-inference"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_mask_without_a_jump_is_no_decision(name: str, policy: str) -> None:
    report = pa.audit(Around(CONTINUOUS[name]).eval(), (X,), policy=policy)
    assert _decided(report) == {} and not [each for each in report.findings if each.severity != "note"]


class Padded(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.proj = nn.Linear(32, 32)
        self.function = function

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.function(self.proj(x), mask)


@pytest.mark.parametrize("name", PADDED)
def test_padding_is_exact(name: str) -> None:
    mask = (torch.arange(32) < torch.arange(256)[:, None] % 31 + 1).float()
    report = pa.audit(Padded(PADDED[name]).eval(), (X + 2, mask))
    assert _decided(report) == {} and not [each for each in report.findings if each.severity != "note"]


class Near(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 5.0 >= 5.003


def test_a_flag_near_its_threshold_is_a_note_where_it_is_an_output() -> None:
    """Products 5.0049 that fp16 holds as 5.0039: still above, and off by half of what would bring them below."""
    x = torch.tensor([1.0, 1.0, 1.0, 2.0]) / 1024 + 1
    told = [each for each in pa.audit(Near(), (x,), policy="fp16-inference").findings if each.rule == "PA206"]
    assert [(each.op, each.severity, each.pins) for each in told] == [("/ge#0", "note", ())]
    assert "has not changed on these inputs" in told[0].message
