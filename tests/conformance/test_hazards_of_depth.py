"""Exponentials, angles and norms: what stays high although the policy wants all low, and what may run low; then what
depth means. Judged from outside, as in `test_hazards`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precision_audit as pa
from tests.conformance.small import ALL_LOW, built, made, policy, weight
from tests.conformance.warned import CPU, alarms, at, high, kept_right, told

# Exponentials, angles, norms -----------------------------------------------------------------------------------------


def _weights(self: nn.Module, x: Tensor) -> Tensor:
    e = torch.exp(self.q(x)) * 0.5
    return self.out((e / e.sum(-1, keepdim=True)) @ x)


def test_an_exponential_that_is_summed_stays_high_up_to_the_next_product() -> None:
    """exp(12) = 162755, its half still above 65504; the ratio is below one and may be low for the product."""
    model = built(_weights, q=nn.Linear(6, 6), out=nn.Linear(6, 6))
    with torch.no_grad():
        model.q.weight.copy_(torch.eye(6) * 12.0)
        model.q.bias.zero_()
    x = torch.eye(6) + 0.1
    found = made(model, (x,), ALL_LOW["fp16"], **CPU)
    assert at(found, "/exp#0"), told(found)
    assert high(found, "/exp#0", "/mul#0", "/sum#0", "/div#0") and {"/matmul#0", "out/linear#0"} <= found.low
    assert kept_right(model, (x,), found)


def test_an_exponential_that_is_in_range_and_feeds_no_sum_may_run_low() -> None:
    model = built(lambda self, x: self.out(torch.exp(-self.q(x).abs())), q=nn.Linear(6, 6), out=nn.Linear(6, 6))
    args = (torch.randn(4, 6, generator=torch.Generator().manual_seed(0)),)
    for low in ALL_LOW.values():
        found = made(model, args, low, **CPU)
        assert not alarms(found), told(found)
        assert "/exp#0" in found.low


def _rotary(self: nn.Module, x: Tensor) -> Tensor:
    position = torch.arange(x.shape[1], dtype=x.dtype)
    angle = position[:, None] * self.frequency
    return self.fc(x) * angle.cos() + x * angle.sin()


@pytest.mark.parametrize("under", ["all low", "bf16-inference"])
def test_angles_of_positions_stay_high(under: str) -> None:
    """At position 1000 with frequency 1 bf16 is off by up to 2 radians."""
    frequency = nn.Parameter(10.0 ** -torch.arange(0.0, 4.0, 0.5), requires_grad=False)
    model = built(_rotary, fc=nn.Linear(8, 8), frequency=frequency)
    args = (torch.randn(1, 1100, 8, generator=torch.Generator().manual_seed(0)),)
    found = made(model, args, ALL_LOW["bf16"] if under == "all low" else under, **CPU)
    assert at(found, "/arange#0", "/mul#0", "/cos#0", "/sin#0"), told(found)
    assert high(found, "/arange#0", "/mul#0", "/cos#0", "/sin#0") and "fc/linear#0" in found.low
    assert kept_right(model, args, found, 3e-2)


def test_the_sine_of_a_features_value_may_run_low() -> None:
    model = built(lambda self, x: self.out(torch.sin(self.fc(x))), fc=nn.Linear(8, 8), out=nn.Linear(8, 8))
    args = (torch.randn(4, 8, generator=torch.Generator().manual_seed(0)),)
    for low in ALL_LOW.values():
        found = made(model, args, low, **CPU)
        assert not alarms(found), told(found)
        assert "/sin#0" in found.low and kept_right(model, args, found, 3e-2)


def _written_out(self: nn.Module, x: Tensor) -> Tensor:
    mean = x.mean((1, 2, 3), keepdim=True)
    variance = x.var((1, 2, 3), keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


NORMS = {"whole": nn.LayerNorm((16, 32, 32)), "written out": built(_written_out)}


@pytest.mark.parametrize("device", ["cpu-amx", "h100"])
@pytest.mark.parametrize("way", NORMS)
@pytest.mark.parametrize("low", ALL_LOW)
def test_a_deep_norm_whose_kernels_sum_in_fp32_is_no_hazard(low: str, way: str, device: str) -> None:
    """16384 elements a row: summed in the low format bf16 would stop at 256 of them."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), NORMS[way]).eval()
    args = (torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)),)
    found = made(model, args, ALL_LOW[low], device=device)
    assert not alarms(found), told(found)
    assert kept_right(model, args, found, 3e-2)


def test_the_norm_of_a_whole_picture_without_weights() -> None:
    """512 x 224 x 224 on the meta device: 25 million elements a row, known from shapes alone."""
    with torch.device("meta"):
        model, x = nn.LayerNorm((512, 224, 224)).eval(), torch.empty(1, 512, 224, 224)
    for low in ALL_LOW.values():
        report = pa.audit(model, (x,), policy=low, device="h100")
        (norm,) = (decision for decision in report.decisions if decision.op == "/layer_norm#0")
        assert norm.accumulate == "fp32"
        assert [finding.rule for finding in report.findings if finding.severity != "note"] == []


# What depth means ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "shape", "depth"),
    [
        (lambda x: x.sum((1, 2)), (2, 32, 32), 1024),
        (lambda x: x.mean(), (4, 8, 8), 256),
        (lambda x: x.cumsum(1), (2, 300), 300),
        (lambda x: F.linear(x, torch.ones(4, 48)), (2, 48), 48),
        (lambda x: x @ x.transpose(-2, -1), (2, 5, 40), 40),
        (lambda x: F.conv2d(x, torch.ones(8, 3, 5, 5), groups=2), (1, 6, 9, 9), 75),
        (lambda x: F.scaled_dot_product_attention(x, x, x), (1, 2, 33, 8), 33),
    ],
    ids=["two axes", "all axes", "cumsum", "linear", "matmul", "grouped convolution", "attention"],
)
def test_a_rule_sees_the_whole_depth_of_a_sum(forward: Any, shape: tuple[int, ...], depth: int) -> None:
    """Through a policy: `depth` at least the true one matches, one more does not."""
    model = built(lambda self, x: forward(x))
    args = (torch.rand(*shape),)

    def kept(minimum: int) -> set[str]:
        under = policy(f"where: {{depth: {{min: {minimum}}}}}, class: keep-fp32", rest="safe-in-bf16")
        return {op.op for op in made(model, args, under).result.report.decisions if "rule-0" in op.reason}

    assert len(kept(depth)) == 1 and not kept(depth + 1)


def test_the_same_depth_whether_the_weight_is_a_parameter_or_an_input() -> None:
    under = policy("where: {depth: {min: 24}}, class: keep-fp32", rest="safe-in-bf16")
    inside = made(built(lambda self, x: F.linear(x, self.w), w=weight(4, 24)), (torch.rand(2, 24),), under)
    outside = made(built(lambda self, x, w: F.linear(x, w)), (torch.rand(2, 24), torch.rand(4, 24)), under)
    assert high(inside, "/linear#0") and high(outside, "/linear#0")
