"""The op at which gradients part first, on hand-made figures and on models whose backward alone is spoilt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.records import Graph, Op, Operand
from precision_audit.records import Tensor as Shape
from precision_audit.verify.parting import sketch
from precision_audit.verify.parting_backward import Gradient, first_parting

_ROWS = (
    ("x", ()),
    ("w", ()),
    ("/linear#0", ("x", "w")),
    ("/relu#0", ("/linear#0",)),
    ("/add#0", ("x", "/relu#0")),
)


def _graph() -> Graph:
    shape = (Shape("fp32", (2,), (2,)),)
    ops = tuple(Op(key, "", key, "", "", "", tuple(Operand(v, "self") for v in reads), shape) for key, reads in _ROWS)
    return Graph(ops, ("/add#0",), "training", ())


def _gradients(**values: float) -> dict[str, Gradient]:
    names = {"x": "x", "w": "w", "linear": "/linear#0", "relu": "/relu#0", "add": "/add#0"}
    return {names[key]: Gradient(sketch(torch.full((2,), value)), 2) for key, value in values.items()}


_RIGHT = {"x": 1.0, "w": 1.0, "linear": 1.0, "relu": 1.0, "add": 1.0}


@pytest.mark.parametrize(
    ("made", "swapped", "expected"),
    [
        ({}, (), ""),
        ({"w": 2.0}, (), "/linear#0"),
        ({"linear": 2.0, "w": 2.0, "x": 2.0}, (), "/relu#0"),
        ({"relu": 2.0, "linear": 2.0, "w": 2.0, "x": 2.0}, (), "/add#0"),
        ({"x": 2.0}, (), "/add#0"),  # read by both, and the last is named where nothing else is known
        ({"x": 2.0}, ("/linear#0",), "/linear#0"),
        ({"w": float("inf")}, (), "/linear#0"),
    ],
)
def test_the_op_nearest_the_outputs(made: Mapping[str, float], swapped: tuple[str, ...], expected: str) -> None:
    assert first_parting(_graph(), _gradients(**_RIGHT), _gradients(**{**_RIGHT, **made}), 0.5, swapped) == expected


def test_a_gradient_that_is_zero_but_for_rounding_parts_from_nothing() -> None:
    assert not first_parting(_graph(), _gradients(**{**_RIGHT, "w": 1e-8}), _gradients(**{**_RIGHT, "w": 3e-8}), 0.5)


class LoudRow(nn.Module):
    """An output feature of huge weights that is scaled back: forward each row has its scale, going backward the huge
    row and the others share one."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.loud, self.gain = nn.Linear(64, 64), nn.Linear(64, 64), nn.Parameter(torch.ones(64))
        with torch.no_grad():
            self.loud.weight[3].mul_(1e6)
            self.gain[3] = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.loud(torch.relu(self.lift(x))) * self.gain


@pytest.mark.parametrize("loss", [None, lambda output: output.square().mean()])
def test_a_swapped_linear_whose_gradient_is_lost_is_named(loss: Callable[[Any], Tensor] | None) -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 64)
    report = pa.audit(LoudRow(), (x,), policy="fp8-training-hopper", device="h100", loss=loss)
    assert report.verification is not None and not report.verification.passed
    (told,) = (each for each in report.verification.notes if "going forward" in each)
    assert "part first at loud/linear#0 (test_parting_backward.py:" in told
