"""Ops that are measured to round nothing, which no remedy keeps high."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.records import Report

WHOLE = torch.tensor([[2.0, 10.0, 12.0, 12.0], [5.0, 5.0, 9.0, 300.0]])


class Sizes(nn.Module):
    """The logarithm of differences plus an eps that fp16 makes zero: PA109 keeps all that makes them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log((x[:, 1:] - x[:, :-1]) * 0.25 + 1e-9)


def _kept(report: Report, rule: str = "PA109") -> set[str]:
    (found,) = (each for each in report.findings if each.rule == rule)
    return set(found.pins)


CHAIN = {"/slice#0", "/slice#1", "/sub#0", "/mul#0"}
LAST = {"/add#0", "/log#0"}
INPUTS = [  # batches, and what is kept of the chain: a quarter of a whole number below 2048 is an fp16 number
    ((WHOLE,), set()),
    ((WHOLE + 0.5,), set()),  # and so is a half
    ((WHOLE * 8.1,), CHAIN),  # 16.2 is not
    ((WHOLE, WHOLE * 8.1), CHAIN),  # in no batch may one be rounded
    ((torch.zeros(2, 4),), CHAIN),  # of zeros alone nothing is learnt
]


@pytest.mark.parametrize(("batches", "kept"), INPUTS)
def test_what_rounds_nothing_runs_low(batches: tuple[Tensor, ...], kept: set[str]) -> None:
    calibration = [(each,) for each in batches]
    report = pa.audit(Sizes(), (batches[0],), policy="fp16-everywhere", calibration=calibration)
    moved = {"/slice#0", "/slice#1"}  # a view of the input, which is rounded for all its readers or none
    assert _kept(report) - moved == (kept | LAST) - moved
    formats = dict(report.plan.formats)
    assert {formats[key] for key in kept | LAST} == {"fp32"}
    assert all(formats[key] == "fp16" for key in CHAIN - kept)


def test_the_numbers_are_those_of_the_high_format() -> None:
    model = Sizes()
    result = pa.convert(model, (WHOLE,), policy="fp16-everywhere")
    (low,), _ = result.module.as_read((WHOLE,), {})
    assert low.dtype == torch.float16
    assert torch.equal(result.module(low), model(WHOLE))


class Scaled(Sizes):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def test_in_training_numbers_move_on() -> None:
    report = pa.audit(Scaled(), (WHOLE,), policy="fp16-training", loss=lambda output: output.mean())
    assert {"/sub#0", "/mul#0"} <= _kept(report)


def test_a_kernel_that_is_missing_is_so_for_whole_numbers_too() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.cholesky(x * 2.0)

    report = pa.audit(Root(), (torch.eye(3) * 2.0,), policy="fp16-everywhere", device="cpu-amx")
    formats = dict(report.plan.formats)
    assert (formats["/mul#0"], formats["/linalg_cholesky#0"]) == ("fp16", "fp32")
    assert _kept(report, "PA302") == {"/linalg_cholesky#0"}


def test_what_is_written_to_later_is_not_known() -> None:
    """The sums were whole numbers when they were seen; a view of them is written to before they are read."""

    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x[:, 1:] - x[:, :-1]
            y[:, 0].mul_(1 / 3)
            return torch.log(y * 0.25 + 1e-9)

    report = pa.audit(Written(), (WHOLE,), policy="fp16-everywhere")
    assert "/sub#0" in _kept(report) and dict(report.plan.formats)["/sub#0"] == "fp32"
