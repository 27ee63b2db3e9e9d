"""The low model beside the captured one: each op's own error, what has accumulated, what is lost, what decides."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.analyse.flips import flip
from precision_audit.records import Op, Swap
from precision_audit.records import Tensor as Shape
from tests.analyse.small import Seen, seen


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (x * 3.0) * 5.0
        return y


X = torch.tensor([1.0, 1.0 + 2.0**-7, 1.0 + 3 * 2.0**-7])  # exact in bf16


def test_own_error_and_what_has_accumulated() -> None:
    """Three times and then five times 1 + k/128, rounded to 8 bits by hand."""
    found = seen(Chain(), X)
    first = [3.0, 3.0 + 3 / 128, 3.0 + 9 / 128]
    rounded = [3.0, 3.0 + 4 / 128, 3.0 + 8 / 128]  # spacing 2^-6 between 2 and 4; 1.5 and 4.5 steps go to the even one
    own = math.dist(first, rounded) / math.hypot(*first)
    assert found.by_value("/mul#0").fresh == pytest.approx(own, rel=1e-6)
    assert found.by_value("/mul#0").drift == pytest.approx(own, rel=1e-6)
    again = [5 * value for value in rounded]  # 15, 15.15625, 15.3125; spacing 2^-4 between 8 and 16
    last = [15.0, 15.125, 15.3125]
    assert [round(value * 16) / 16 for value in again] == [15.0, 15.125, 15.3125]
    exact = [15 * (value / 3) for value in first]
    assert found.by_value("/mul#1").fresh == pytest.approx(math.dist(again, last) / math.hypot(*again), rel=1e-6)
    assert found.by_value("/mul#1").drift == pytest.approx(math.dist(exact, last) / math.hypot(*exact), rel=1e-6)
    assert found.by_value("/mul#1").drift_in == found.by_value("/mul#0").drift


def test_differences_are_handed_over_element_by_element() -> None:
    found = seen(Chain(), X)
    assert found.deltas.low["/mul#0"].tolist() == [0.0, 1 / 128, -1 / 128]
    assert found.deltas.low["/mul#1"].tolist() == [0.0, 15.125 - 15.15625, 0.0]


def test_above_the_limit_every_nth_element_is_kept() -> None:
    torch.manual_seed(0)
    x = torch.randn(1000)
    whole, part = seen(Chain(), x), seen(Chain(), x, limit=4 * 1000)
    stride = part.deltas.stride
    assert whole.deltas.stride == 1 and stride == 3  # three values of 1000 fp32 elements against room for one
    assert part.deltas.low["/mul#0"].tolist() == whole.deltas.low["/mul#0"][::stride].tolist()
    for source in ("/mul#0", "/mul#1"):  # the sum over a third of the elements counts thrice
        assert part.share(source).share == pytest.approx(whole.share(source).share, rel=0.25)


class Sums(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        squares = x * x
        return squares, (squares > 100.0).long()


def test_elements_lost_and_decisions_changed() -> None:
    found = seen(Sums(), torch.tensor([1.0, 300.0, 400.0, 10.002]), low="fp16")
    row = found.by_value("/mul#0")
    assert (row.lost, row.fresh_lost) == (2, 2)  # 90000 and 160000 exceed 65504
    (decided,) = [each for each in found.beside if each.format == "bool"]
    assert decided.changed == 0.25  # 10.002 is 10.0 in fp16, whose square is not above 100


def test_random_ops_draw_alike_in_every_run() -> None:
    class Drops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.dropout(x, 0.5, True) * 1.5

    found = seen(Drops(), torch.ones(1000), mode="training")
    assert found.by_value("/dropout#0").drift == 0.0  # 0 or 2, in every format; another mask would give about 1


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y


def _by_fp8(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Rowwise fp8: per row of either operand the largest power of two as scale with which it stays within e4m3's 448;
    products summed in fp32, the result in bf16."""

    def rounded(value: Tensor) -> Tensor:
        scale = (448.0 / value.abs().amax(1, keepdim=True)).log2().floor().exp2()
        return (value * scale).to(torch.float8_e4m3fn).float() / scale

    return (rounded(x) @ rounded(weight).T).bfloat16() + bias.bfloat16()


def test_fp8_product_of_a_linear_to_be_swapped() -> None:
    swap = Swap("fc/linear#0", "fc", "torchao", "rowwise", 32, 16, 8)
    torch.manual_seed(1)
    x = torch.randn(8, 32).bfloat16().float()  # read in bf16 without a loss
    model = Linear()
    found: Seen = seen(model, x, swaps=(swap,))
    delta = found.deltas.swapped["fc/linear#0"].reshape(8, 16)
    exact = model.fc(x).detach()
    by_hand = _by_fp8(x, model.fc.weight.detach(), model.fc.bias.detach()).float() - exact
    assert float(delta.norm() / exact.norm()) == pytest.approx(float(by_hand.norm() / exact.norm()), rel=0.2)
    assert float(torch.nn.functional.cosine_similarity(delta.flatten(), by_hand.flatten(), dim=0)) > 0.9


@pytest.mark.parametrize(
    ("name", "attributes", "row", "margin"),
    [
        ("argmax", (("dim", -1),), [1.0, 4.0, 2.0, 3.5], 0.5),
        ("argmin", (("dim", -1),), [1.0, 4.0, 1.25, 3.5], 0.25),
        ("topk", (("k", 2), ("dim", -1)), [1.0, 4.0, 2.0, 3.5], 1.5),
        ("topk", (("k", 2), ("dim", -1), ("largest", False)), [1.0, 4.0, 2.0, 3.5], 1.5),
    ],
)
def test_margin_and_risk_of_a_decision(
    name: str, attributes: tuple[tuple[str, object], ...], row: list[float], margin: float
) -> None:
    op = Op(f"/{name}#0", "", name, "", "", "", (), (Shape("int64", (1,), (1,)),), attributes)
    exact = torch.tensor([row])
    error = torch.tensor([[0.25, -0.25, 0.25, -0.25]])
    found = flip(op, exact, exact + error)
    assert found is not None
    assert (found.margin, found.sigma) == (margin, 0.25)
    assert found.at_risk == pytest.approx(0.5 * math.erfc(margin / (2 * 0.25)))


@pytest.mark.parametrize(
    ("name", "threshold", "values", "risk"),
    [
        ("gt", 1.0, [1.5, 0.25], (math.erfc(0.5 / (0.25 * 2**0.5)) + math.erfc(0.75 / (0.25 * 2**0.5))) / 4),
        ("le", 0, [0.0, 0.25], math.erfc(1 / 2**0.5) / 4),  # a padded zero stays one
    ],
)
def test_risk_of_a_comparison_with_a_number(name: str, threshold: float, values: list[float], risk: float) -> None:
    op = Op(f"/{name}#0", "", name, "", "", "", (), (Shape("bool", (2,), (2,)),), (("other", threshold),))
    exact = torch.tensor(values)
    found = flip(op, exact, exact + torch.tensor([0.25, -0.25]))
    assert found is not None and found.sigma == 0.25
    assert found.at_risk == pytest.approx(risk)


def test_no_risk_without_error_nor_between_one() -> None:
    op = Op("/argmax#0", "", "argmax", "", "", "", (), (Shape("int64", (1,), (1,)),), (("dim", -1),))
    sure = flip(op, torch.tensor([[1.0, 1.5]]), torch.tensor([[1.0, 1.5]]))
    assert sure is not None and sure.at_risk == 0.0
    assert flip(op, torch.tensor([[1.0]]), torch.tensor([[1.5]])) is None


def test_an_output_of_complex_numbers_keeps_its_error() -> None:
    """A difference of numbers near 300, whose steps are 1 and 2 in bf16, goes into a transform."""

    class Transformed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft((x + 300) - 300)

    report = pa.audit(Transformed(), (torch.rand(4, 16),), policy="bf16-everywhere", device="cpu-amx")
    assert report.facts is not None
    (record,) = [each for each in report.facts.beside if each.value.startswith("/fft_rfft")]
    assert record.drift > 0.1
    assert any(each.rule == "PA204" and each.resolved for each in report.findings)
