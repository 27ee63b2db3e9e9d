"""Kinds of hazard that were missed, or told wrongly, by a rule that stands for a whole family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.records import Finding, Report


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _alarms(report: Report) -> list[Finding]:
    return [each for each in report.findings if each.severity != "note"]


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


class Products(nn.Module):
    """Probabilities multiplied over time: every number ends below what fp16 holds, only the largest is asked for."""

    def forward(self, emission: Tensor) -> Tensor:
        path = emission[:, 0]
        for step in range(1, 12):
            path = path * emission[:, step]
        return path.argmax(-1)


def test_underflow_that_only_a_decision_shows() -> None:
    emission = torch.rand(16, 12, 20, generator=torch.Generator().manual_seed(0)) * 0.1
    result = pa.convert(Products(), (emission,), policy="fp16-inference")
    assert any(each.rule == "PA110" and each.resolved for each in _alarms(result.report))
    assert torch.equal(result.module(emission), Products()(emission))


class Shrunken(nn.Module):
    """A weight norm over a direction of 1e-8: the norm is kept high, and so must be what it divides."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.g = nn.Parameter(_drawn(8, 6) * 1e-8), nn.Parameter(torch.ones(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.g * self.v / self.v.norm(dim=1, keepdim=True))


def test_all_that_reads_a_small_number_is_kept_high() -> None:
    model, x = Shrunken().eval(), _drawn(4, 6, seed=1)
    result = pa.convert(model, (x,), policy="fp16-inference")
    assert _off(result.module(x), model(x)) < 5e-3


class Rotary(nn.Module):
    """Angles of positions that the user has cast to fp32: `model.bfloat16()` keeps them right, a plan need not."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(16, 16)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        angles = position[:, None].float() * torch.tensor([1.0, 0.5, 0.25, 0.125])
        y: Tensor = self.proj(x) * torch.cat([angles.cos(), angles.sin()], -1).repeat(1, 2)
        return y


def test_what_the_users_own_cast_keeps_right_is_a_note_and_is_kept() -> None:
    model, args = Rotary(), (_drawn(900, 16), torch.arange(900))
    result = pa.convert(model, args)
    assert not [each for each in _alarms(result.report) if each.rule.startswith("PA2")]
    assert _off(result.module(*args), model(*args)) < 3e-2
    verification = result.report.verification
    assert verification is not None
    plain = Rotary()
    plain.load_state_dict(model.state_dict())
    cast = plain.bfloat16()(args[0].bfloat16(), args[1]).float()
    assert verification.outputs[0].plain_relative_l2 == pytest.approx(_off(cast, model(*args)), rel=0.5)


class Sigmoid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 1 / (1 + torch.exp(-x))


def test_an_infinity_that_makes_no_difference_is_no_alarm() -> None:
    report = pa.audit(Sigmoid(), (torch.tensor([-20.0, -3.0, 0.5, 4.0]),), policy="fp16-inference")
    assert not _alarms(report)
    assert [(each.rule, each.severity) for each in report.findings if each.rule == "PA103"] == [("PA103", "note")]


class Focal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        p = x.exp() / x.exp().sum(-1, keepdim=True)
        return (p + 1e-12).log()


def test_a_vanishing_eps_is_no_wrong_kernel() -> None:
    report = pa.audit(Focal(), (_drawn(8, 10) * 40,), policy="fp16-inference")
    assert "PA304" not in {each.rule for each in report.findings}
    assert {"PA103", "PA109"} <= {each.rule for each in _alarms(report)}


class Masked(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (x @ x.mT).masked_fill(mask, -1e9).softmax(-1)


def test_a_mask_that_autocast_refuses_and_the_conversion_does_not() -> None:
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
    report = pa.audit(Masked(), (_drawn(2, 6, 8), mask), policy="amp-cuda-fp16")
    told = [each for each in report.findings if each.rule == "PA104"]
    assert all(each.resolved for each in told)
    assert report.verification is not None and report.verification.passed


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(8, 8)
        self.register_buffer("held", torch.zeros(2, 6, 8))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.held[:, position] = self.key(x)
        return self.held * 2


def test_a_cache_write_under_autocast_is_cast_to_the_cache() -> None:
    args: tuple[Any, ...] = (_drawn(2, 3, 8), torch.arange(3))
    result = pa.convert(Cache(), args, policy="amp-cpu-bf16")
    assert any(each.rule == "PA301" and each.resolved for each in _alarms(result.report))
    assert result.report.verification is not None and result.report.verification.passed


class Collected(nn.Module):
    """The output is a buffer that is written to row by row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros(2, *x.shape, dtype=x.dtype)
        made[0] = torch.sin(self.first(x) * 100)
        made[1] = self.first(x)
        return made


def test_what_is_written_into_the_output_is_judged() -> None:
    result = pa.convert(Collected().eval(), (_drawn(4, 16) * 3,), policy="fp16-everywhere")
    assert any(each.rule == "PA202" and each.resolved for each in result.report.findings)
    assert result.report.verification is not None and result.report.verification.passed


def test_what_an_input_out_of_range_loses_is_no_cancellation() -> None:
    norm = nn.BatchNorm1d(4).eval()
    norm.running_mean, norm.running_var = torch.full((4,), 1.7e9), torch.full((4,), 1e10)
    x = _drawn(32, 4) * 1e5 + 1.7e9
    told = {
        each.rule for each in pa.audit(nn.Sequential(norm, nn.Linear(4, 4)), (x,), policy="fp16-everywhere").findings
    }
    assert "PA106" in told and "PA204" not in told
