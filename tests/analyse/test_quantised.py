"""Linears under every quantisation: what is measured of operands whose numbers can be worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precision_audit import hardware, policy
from precision_audit.analyse import analyse, quantised
from precision_audit.analyse.histogram import shares_of
from precision_audit.analyse.training import Lesson
from precision_audit.capture import capture, private_copy
from precision_audit.quantise import SCHEMES, encoded
from precision_audit.records import Quantised, Scaled


def measured(
    model: nn.Module,
    args: tuple[Any, ...],
    named: str = "fp8-training-hopper",
    loss: Any = None,
    quantise: bool | None = None,
) -> dict[tuple[str, str], Quantised]:
    wanted = policy.load(named)
    captured = capture(private_copy(model), args, mode=wanted.mode)
    lesson = Lesson(captured, loss) if loss else None
    facts = analyse(captured, wanted, hardware.device("h100"), [(args, {})], lesson, loss, quantise)
    assert not any("not measured" in note for note in facts.notes)
    return {(each.op, each.scheme): each for each in facts.quantised}


def operand(made: Quantised, name: str) -> Scaled:
    (found,) = (each for each in made.operands if each.operand == name)
    return found


def linear(weight: Tensor) -> nn.Module:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight)
    return nn.Sequential(layer)


def test_an_operand_by_hand() -> None:
    """x: a row 448, 1, 1, … and a row of 2^-10. Under one scale, 1, the second becomes zero: it lies half way to e4m3's
    smallest, 2^-9, and zero is even. With a scale per row it is exact. W is the identity, exact under fp8."""
    x = torch.full((2, 16), 2.0**-10)
    x[0] = torch.tensor([448.0, *[1.0] * 15])
    found = measured(linear(torch.eye(16)), (x,))
    tensorwise, rowwise = found["0/linear#0", "fp8_tensorwise"], found["0/linear#0", "fp8_rowwise"]
    told = operand(tensorwise, "input")
    assert (told.amax, told.scale, told.flushed, told.saturated, told.zero_groups) == (448.0, 1.0, 0.5, 0.0, 0.0)
    assert told.mass == pytest.approx(16 * 2.0**-10 / (448 + 15 + 16 * 2.0**-10))
    # the median of 32 magnitudes is taken below the middle: 2^-10
    assert told.headroom == pytest.approx(math.log2(448) + 10)
    assert told.outliers == 0.0  # 448 is 5.7 root mean squares
    assert tensorwise.error == pytest.approx(math.sqrt(16) * 2.0**-10 / math.sqrt(448**2 + 15), rel=1e-5)
    assert tensorwise.rows == 0.0  # of two rows, one exact and one lost, the lower
    assert rowwise.error == rowwise.rows == rowwise.columns == 0.0
    held = operand(rowwise, "weight")
    assert (held.amax, held.scale, held.format, held.flushed) == (1.0, 256.0, "fp8_e4m3fn", 0.0)


def test_saturation_is_told_without_a_scale_and_zero_groups_with_one() -> None:
    x = torch.zeros(4, 16)
    x[0, :8], x[1, 0] = 1000.0, 1.0
    found = measured(linear(torch.eye(16)), (x,))
    for scheme, beyond in (("fp8_rowwise", 8 / 64), ("int8", 8 / 64), ("nvfp4", 8 / 64)):
        assert operand(found["0/linear#0", scheme], "input").saturated == beyond
    assert operand(found["0/linear#0", "fp8_rowwise"], "input").zero_groups == 0.5
    assert operand(found["0/linear#0", "fp8_tensorwise"], "input").zero_groups == 0.0


def test_a_zero_weight_is_exact() -> None:
    """Under every scheme: that torchao's NVFP4 makes NaN of it is of the backend, and PA412 says so."""
    found = measured(linear(torch.zeros(16, 16)), (torch.ones(16, 16),))
    for scheme in SCHEMES:
        made = found["0/linear#0", scheme]
        assert made.error == 0.0
        assert operand(made, "weight").amax == operand(made, "weight").scale == 0.0


def test_the_largest_of_a_row_may_become_another() -> None:
    """17 and 16.5 are both 16 in e4m3 (steps of 2 above 16, ties to even), so that the first of them wins."""
    weight = torch.zeros(16, 16)
    weight[:, 0] = torch.tensor([16.5, 17.0, *[1.0] * 13, 448.0])
    x = torch.zeros(4, 16)
    x[:, 0] = 1.0
    weight[15, 0], weight[15, 1] = 0.0, 448.0  # holds the scale at 1
    made = measured(linear(weight), (x,))["0/linear#0", "fp8_tensorwise"]
    assert made.changed == 1.0


def test_gradients_come_from_the_training_steps() -> None:
    """The gradient of a sum is one in every element: exact in e5m2 and e4m3."""
    found = measured(linear(torch.eye(16)), (torch.ones(16, 16),), loss=lambda output: output.sum())
    told = operand(found["0/linear#0", "fp8_tensorwise"], "gradient")
    assert (told.format, told.amax, told.scale, told.flushed) == ("fp8_e5m2", 1.0, 57344.0, 0.0)
    assert operand(found["0/linear#0", "fp8_rowwise"], "gradient").format == "fp8_e4m3fn"
    assert not [each for each in found["0/linear#0", "int8"].operands if each.operand == "gradient"]


class Products(nn.Module):
    """Every kind of product with a weight, and two that are none."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(16, 32)), nn.Parameter(torch.randn(32))
        self.experts, self.proj = nn.Parameter(torch.randn(2, 32, 16)), nn.Parameter(torch.randn(48, 32))

    def forward(self, x: Tensor) -> Tensor:
        a = torch.addmm(self.b, x, self.w)
        b = x @ self.w
        e = torch.bmm((a + b).reshape(2, -1, 32), self.experts)
        attention = e @ e.transpose(1, 2)  # of two activations
        f = nn.functional.linear(a, self.proj)
        made: Tensor = attention.sum() + f + (self.w @ self.experts[0]).sum()
        return made


def test_products_of_weights_are_measured_however_they_are_written() -> None:
    torch.manual_seed(0)
    found = measured(Products(), (torch.randn(8, 16),), quantise=True, named="bf16-inference")
    assert sorted({key for key, _ in found}) == ["/addmm#0", "/bmm#0", "/linear#0", "/matmul#0"]
    for (_, scheme), made in found.items():
        normal = {"int8": 0.005, "mxfp4": 0.1, "nvfp4": 0.09}.get(scheme, 0.025), {"mxfp4": 0.25, "nvfp4": 0.2}
        assert normal[0] < made.error * (2 if scheme == "int8" else 1) < normal[1].get(scheme, 0.06)


def test_grouped_products_are_measured_expert_by_expert() -> None:
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no grouped product")

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 64, 32, dtype=torch.bfloat16))

        def forward(self, x: Tensor, ends: Tensor) -> Tensor:
            made: Tensor = torch._grouped_mm(x, self.w, ends)
            return made

    torch.manual_seed(0)
    x, ends = torch.randn(48, 64).bfloat16(), torch.tensor([16, 16, 48], dtype=torch.int32)  # the second gets none
    found = measured(Experts(), (x, ends), named="bf16-inference", quantise=True)
    assert {scheme for _, scheme in found} == set(SCHEMES)
    assert 0.02 < found["/_grouped_mm#0", "fp8_rowwise"].error < 0.05


def test_it_runs_only_where_something_hangs_on_it() -> None:
    model, args = nn.Sequential(nn.Linear(16, 16)), (torch.randn(16, 16),)
    assert measured(model, args, "bf16-training") == {} == measured(model, args, "fp8-training-hopper", quantise=False)
    assert len(measured(model, args)) == len(measured(model, args, "bf16-training", quantise=True)) == len(SCHEMES)


def test_a_sample_of_rows_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row with the largest number is among them: it sets the scale."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 512, bias=False)), torch.randn(2048, 64)
    x[777, 3] = 5000.0
    whole = measured(model, (x,))
    monkeypatch.setattr(quantised, "BUDGET", 2 * 128 * 64)
    monkeypatch.setattr(quantised, "_LEAST", 128 * 64)
    part = measured(model, (x,))
    for key, made in whole.items():
        for name in ("input", "weight"):
            assert operand(part[key], name).amax == operand(made, name).amax
        assert part[key].rows == pytest.approx(made.rows, rel=0.15)
    assert quantised._sample(x, 128 * 64, 1).shape[0] in (128, 129)


BLOCKS = ("fp8_tensorwise", "mxfp8_e4m3", "mxfp4")


@pytest.mark.parametrize("scheme", BLOCKS)
@pytest.mark.parametrize("seed", range(3))
def test_shares_of_block_formats_are_those_of_the_emulation(scheme: str, seed: int) -> None:
    """`histogram` and `quantise` are two implementations of one arithmetic; mx blocks as the OCP text has them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 96, generator=generator) * torch.randn(64, 96, generator=generator).mul(4).exp()
    made = encoded(x, scheme, "input", "floor")
    flushed = int(((made.elements == 0) & (made.values != 0)).sum()) / x.numel()
    assert shares_of(x, scheme).underflow == pytest.approx(flushed, abs=1e-12)
    assert flushed > 0


def test_the_product_of_a_long_input_and_a_long_weight_is_bounded() -> None:
    x, weight = quantised._sampled(torch.randn(4096, 16), torch.randn(8192, 16), 1 << 16)
    assert x.numel() <= 1 << 16 and weight.numel() <= (1 << 16) + 128 * 16 and len(x) * len(weight) <= 3 * (1 << 16)
    assert len(x) >= 16
