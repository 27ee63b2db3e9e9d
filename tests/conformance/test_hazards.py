"""Hazards: what must be told, where, and what must not; and what is kept high for it under a policy that wants all low.

Everything here is judged from outside: findings of a conversion, formats of its plan, its output. Numbers are those of
the formats (65504 is fp16's largest, 2^-24 its smallest) and of models whose values can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit import rules
from tests.conformance.small import ALL_LOW, built, made, policy
from tests.conformance.warned import CPU, alarms, at, high, kept_right, told

# Range ---------------------------------------------------------------------------------------------------------------


def test_the_output_of_the_op_itself_decides_even_where_every_reader_shrinks_it() -> None:
    """16 * 8192 * |x| = 131072 |x|, read by a division that brings it back to order one."""
    model = built(lambda self, x: self.fc(x) / 65536.0, fc=nn.Linear(16, 4, bias=False))
    nn.init.constant_(model.fc.weight, 8192.0)
    args = (torch.ones(2, 16),)
    found = made(model, args, ALL_LOW["fp16"], **CPU)
    assert at(found, "fc/linear#0") and high(found, "fc/linear#0") and kept_right(model, args, found)
    assert not alarms(made(model, args, ALL_LOW["bf16"], **CPU))


@pytest.mark.parametrize("largest", [70000.0, -70000.0])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_three_batches_give_the_extreme_of_all_whatever_its_sign(largest: float, position: int) -> None:
    model = built(lambda self, x: torch.tanh(self.fc(x) * 2.0), fc=nn.Linear(4, 4, bias=False))
    nn.init.eye_(model.fc.weight)
    batches = [torch.full((2, 4), 3.0) for _ in range(3)]
    batches[position][1, 2] = largest / 2.0
    found = made(model, (batches[0],), ALL_LOW["fp16"], calibration=[(each,) for each in batches[1:]], **CPU)
    about = [finding for finding in found.result.report.findings if finding.op == "/mul#0"]  # a note, before a tanh
    assert len(about) == 1, told(found)  # judged once, not once a batch
    numbers = dict(about[0].evidence.numbers)
    assert numbers["amax"] == 70000.0 and numbers["batch"] == position
    assert high(found, "/mul#0")


def test_nan_in_a_calibration_tensor_is_reported_and_not_counted_as_in_range() -> None:
    model = built(lambda self, x: self.fc(x), fc=nn.Linear(4, 4))
    spoiled = torch.ones(2, 4)
    spoiled[0, 1] = float("nan")
    report = made(model, (torch.ones(2, 4),), "fp16-inference", calibration=[(spoiled,)], **CPU).result.report
    said = [finding.message for finding in report.findings] + list(report.meta.notes) + list(report.graph.notes)
    assert any("nan" in text.lower() for text in said), said


@pytest.mark.parametrize(
    "batch",
    [{"y": torch.ones(2, 4)}, (torch.ones(2, 5),), (torch.ones(2, 4), torch.ones(2, 4)), ()],
    ids=["name", "shape", "count", "nothing"],
)
def test_a_batch_that_does_not_fit_is_an_error_that_says_so(batch: Any) -> None:
    model = built(lambda self, x: self.fc(x), fc=nn.Linear(4, 4))
    with pytest.raises(pa.InputError, match="calibration batch 0") as refused:
        made(model, (torch.ones(2, 4),), "fp16-inference", calibration=[batch], **CPU)
    assert "\n" not in str(refused.value)


class Rms(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        square = {"pow": lambda: x.pow(2), "mul": lambda: x * x, "square": lambda: torch.square(x)}[self.way]()
        return x * torch.rsqrt(square.mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("way", ["pow", "mul", "square"])
def test_a_square_inside_a_module_is_caught_at_the_square(way: str) -> None:
    """An activation of 300 squared is 90000; what enters and leaves the module is below 65504."""
    model = nn.Sequential(Rms(way), nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    x[:, 3] = 300.0
    found = made(model, (x,), ALL_LOW["fp16"], **CPU)
    assert at(found, f"0/{way}#0") and high(found, f"0/{way}#0") and kept_right(model, (x,), found)
    assert "1/linear#0" in found.low


def test_a_sum_inside_a_module_is_caught_where_each_term_fits() -> None:
    """64 terms of 40^2 = 1600 sum to 102400."""
    model = built(lambda self, x: x / torch.sqrt((x * x).sum(-1, keepdim=True)))
    args = (torch.full((2, 64), 40.0),)
    found = made(model, args, ALL_LOW["fp16"], **CPU)
    assert [finding.op for finding in alarms(found)] == ["/sum#0"], told(found)
    assert kept_right(model, args, found)


def test_the_op_that_first_leaves_the_range_is_named() -> None:
    """62000 from the feed-forward, 62000 + 4000 on the residual stream, NaN from the norm: it is the addition."""
    model = built(lambda self, x: self.norm(x + self.ff(x)), ff=nn.Linear(16, 16, bias=False), norm=nn.LayerNorm(16))
    with torch.no_grad():
        model.ff.weight.zero_()
        model.ff.weight[5, 5] = 15.5
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    x[:, 5] = 4000.0
    found = made(model, (x,), ALL_LOW["fp16"], **CPU)
    assert [finding.op for finding in alarms(found) if finding.severity == "error"] == ["/add#0"], told(found)
    assert high(found, "/add#0") and kept_right(model, (x,), found)


def test_an_op_that_only_inherits_or_is_nan_in_both_is_not_blamed() -> None:
    model = built(lambda self, x: torch.relu(torch.sqrt(x) + 1.0) * 2.0)  # sqrt(-1) is NaN whatever the format
    found = made(model, (torch.tensor([[-1.0, 4.0], [9.0, 16.0]]),), ALL_LOW["fp16"], **CPU)
    assert not alarms(found), told(found)
    inherits = built(lambda self, x: torch.relu((x * 300.0) - 1.0) * 0.001)
    found = made(inherits, (torch.full((2, 4), 300.0),), ALL_LOW["fp16"], **CPU)
    assert {finding.op for finding in alarms(found)} == {"/mul#0"}, told(found)


# Constants and weights -----------------------------------------------------------------------------------------------


def _attention(fill: Callable[[Tensor], float], ways: str = "fill") -> nn.Module:
    def forward(self: nn.Module, x: Tensor, keep: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-2, -1)
        if ways == "fill":
            scores = scores.masked_fill(~keep, fill(scores))
        else:
            scores = scores + torch.zeros_like(scores).masked_fill(~keep, fill(scores))
        return scores.softmax(-1) @ x

    return built(forward, q=nn.Linear(8, 8), k=nn.Linear(8, 8))


@pytest.mark.parametrize("ways", ["fill", "add"])
@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_a_fully_masked_row_gives_no_nan(low: str, ways: str) -> None:
    """finfo.min of the fp32 model becomes the low format's lowest: a row of equal scores, as in fp32."""
    model = _attention(lambda scores: torch.finfo(scores.dtype).min, ways)
    keep = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    keep[:, 2] = False
    args = (torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)), keep)
    found = made(model, args, ALL_LOW[low], **CPU)
    assert kept_right(model, args, found, 3e-2)


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_a_true_minus_infinity_is_fine_and_stays(low: str) -> None:
    model = _attention(lambda scores: float("-inf"))
    args = (
        torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)),
        torch.ones(1, 4, 4, dtype=torch.bool).tril(),
    )
    found = made(model, args, ALL_LOW[low], **CPU)
    assert not alarms(found), told(found)
    assert kept_right(model, args, found, 3e-2)
    fills = [node for node in found.result.graph.nodes if "masked_fill" in str(node.target)]
    assert [node.args[2] for node in fills] == [float("-inf")]


def test_a_small_negative_constant_never_becomes_positive() -> None:
    model = built(lambda self, x: torch.where(x > 0, x, -1e-9))
    args = (torch.tensor([[-1.0, 2.0]]),)
    for low in ALL_LOW.values():
        output = made(model, args, low, **CPU).module(*args)
        assert torch.copysign(torch.ones(()), output[0, 0]) == -1 and output[0, 0] > -1e-6


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_weight_beyond_the_range(sign: float) -> None:
    """70000 in one weight: told in fp16, and the product stays high; nothing to say in bf16, which holds it."""
    model = built(lambda self, x: self.second(self.first(x)), first=nn.Linear(8, 8), second=nn.Linear(8, 8))
    with torch.no_grad():
        model.first.weight[0, 0] = sign * 70000.0
    args = (torch.full((2, 8), 1e-3),)
    found = made(model, args, "fp16-inference", **CPU)
    assert any("first.weight" in finding.message for finding in alarms(found)), told(found)
    assert high(found, "first/linear#0") and "second/linear#0" in found.low
    assert kept_right(model, args, found)
    assert found.module.get_parameter("first.weight")[0, 0] == sign * 70000.0
    assert not alarms(made(model, args, "bf16-inference", **CPU))


# An eps that vanishes -------------------------------------------------------------------------------------------------

DIVISIONS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "x / (y + eps)": lambda x, y, eps: x / (y + eps),
    "x / max(y, eps)": lambda x, y, eps: x / torch.clamp(y, min=eps),
    "x / maximum(y, eps)": lambda x, y, eps: x / torch.maximum(y, torch.full_like(y, eps)),
    "x / sqrt(y + eps)": lambda x, y, eps: x / torch.sqrt(y + eps),
    "x * (y + eps)^-0.5": lambda x, y, eps: x * (y + eps) ** -0.5,
    "x * rsqrt(y + eps)": lambda x, y, eps: x * torch.rsqrt(y + eps),
}


def _divides(way: str, eps: float) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """y is zero in places, as a dead unit or a padded row is; x is zero there too."""
    model = built(lambda self, x, y: self.fc(DIVISIONS[way](x, y, eps)), fc=nn.Linear(4, 4))
    y = torch.tensor([[0.0, 1.0, 2.0, 0.5]]).repeat(3, 1)
    return model, (y * torch.tensor([[1.0], [2.0], [-1.5]]), y)


@pytest.mark.parametrize("way", DIVISIONS)
def test_a_division_by_what_an_eps_keeps_from_zero_stays_high(way: str) -> None:
    model, args = _divides(way, 1e-12)
    found = made(model, args, ALL_LOW["fp16"], **CPU)
    assert alarms(found) and found.low <= {"fc/linear#0"}, told(found)
    assert kept_right(model, args, found)


@pytest.mark.parametrize("way", DIVISIONS)
def test_with_an_eps_that_the_format_holds_it_may_run_low(way: str) -> None:
    model, args = _divides(way, 1e-2)
    found = made(model, args, ALL_LOW["fp16"], **CPU)
    assert not alarms(found), told(found)
    computed = {op.key for op in found.result.report.graph.ops if "/" in op.key}
    assert found.low == computed and kept_right(model, args, found)


def test_a_rule_turned_off_by_the_policy_does_nothing() -> None:
    """The other way round: without the rules the same model breaks, so it is they that keep it right."""
    model = nn.Sequential(Rms("pow"), nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    x[:, 3] = 300.0
    off = ", ".join(f"{code}: off" for code in rules.listed() if code[2] in "123")
    everything = policy(rest="safe-in-fp16", low="fp16", more=f"hazards: {{{off}}}")
    found = made(model, (x,), everything, **CPU)
    assert "0/pow#0" in found.low and not kept_right(model, (x,), found)


class Scratch(nn.Module):
    """Memory that is written before it is read: handed out as it lies there, and a buffer of NaN."""

    scratch: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("scratch", torch.full((4, 8), float("nan")), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4, 16)
        out[:, :8] = self.fc(x)
        out[:, 8:] = x
        self.scratch.copy_(x)
        return torch.tanh(out)


class Padded(nn.Module):
    """Softmax over a row of padding is NaN, and is thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        weights = (h @ h.transpose(-1, -2)).masked_fill(padding[:, None, :], float("-inf")).softmax(-1)
        return (weights @ h).masked_fill(padding[..., None], 0.0)


@pytest.mark.parametrize("policy", ["bf16-inference", "fp16-inference", "bf16-training", "fp16-training"])
def test_uninitialised_memory_and_padding_are_not_blamed_for_nan(policy: str) -> None:
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1] = True
    for model, args in ((Scratch(), (torch.randn(4, 8),)), (Padded(), (torch.randn(2, 5, 8), padding))):
        report = pa.audit(model, args, policy=policy, device="cpu-amx", loss=lambda output: output.pow(2).sum())
        assert [f"{each.rule}: {each.message}" for each in report.findings if each.severity != "note"] == []
