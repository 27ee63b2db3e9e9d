"""The pipeline's own promises: what audit and convert do with a model, beside the laws of test_identity."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit.records import InputError


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 16))


def test_a_model_without_weights_is_planned_as_one_with_weights() -> None:
    args = (torch.randn(8, 64),)
    with torch.device("meta"):
        bare = perceptron()
    without = pa.audit(bare, args)
    withal = pa.audit(perceptron(), args)
    assert without.verification is None
    assert (without.verdict, withal.verdict) == ("NOT ENOUGH EVIDENCE", "READY")
    assert without.plan.formats == withal.plan.formats
    assert without.plan.casts == withal.plan.casts
    assert without.meta.weights.startswith("no weights")
    assert all(parameter.is_meta for parameter in bare.parameters())
    with pytest.raises(InputError, match="Sequential has no weights"):
        pa.convert(bare, args)


def test_a_large_model_is_audited_without_its_memory() -> None:
    with torch.device("meta"):
        large = nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(60)))  # 64 GB in fp32
    started = time.process_time()
    report = pa.audit(large, (torch.randn(16, 16384, device="meta"),), policy="fp8-training-hopper")
    assert len(report.plan.swaps) == 60
    assert report.meta.parameters == 60 * (16384 * 16384 + 16384)
    assert time.process_time() - started < 60


def test_nan_in_a_parameter_is_refused() -> None:
    model = perceptron()
    with torch.no_grad():
        model[3].weight[2, 3] = float("nan")
    with pytest.raises(InputError, match=r"parameter 3\.weight holds NaN \(1 of 2048 values\)"):
        pa.audit(model, (torch.randn(8, 64),))


def test_a_plan_of_the_other_mode_is_refused(tmp_path: Path) -> None:
    model, args = perceptron(), (torch.randn(8, 64),)
    plan = pa.convert(model, args, policy="bf16-inference").plan
    with pytest.raises(InputError, match="the plan to apply is for inference, policy bf16-training for training"):
        pa.convert(model, args, policy="bf16-training", apply_plan=plan)


def test_an_applied_plan_is_the_plan_of_the_conversion() -> None:
    model, args = perceptron(), (torch.randn(8, 64),)
    first = pa.convert(model, args)
    again = pa.convert(model, args, apply_plan=first.plan)
    assert again.plan == first.plan
    assert torch.equal(again.module(*args), first.module(*args))


def test_shared_parameters_are_trained_in_place() -> None:
    model, args = perceptron(), (torch.randn(8, 64),)
    before = model[0].weight.detach().clone()
    result = pa.convert(model, args, policy="bf16-training", share_parameters=True)
    assert result.module.get_parameter("0.weight") is model[0].weight
    optimizer = torch.optim.SGD(result.module.parameters(), lr=0.1)
    result.module.train()(*args).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


def test_calibration_batches_are_all_run() -> None:
    model, args = perceptron(), (torch.randn(8, 64),)
    report = pa.audit(model, args, calibration=[(torch.randn(8, 64),), ((torch.randn(8, 64),), {}), torch.randn(8, 64)])
    assert report.meta.batches == 4
    with pytest.raises(InputError, match="calibration batch 0 is a int; expected a tuple"):
        pa.audit(model, args, calibration=[3])  # type: ignore[list-item]


def test_the_same_input_gives_the_same_report() -> None:
    from precision_audit import report

    torch.manual_seed(0)
    model, args = perceptron(), (torch.randn(8, 64),)
    texts = {report.render(pa.audit(model, args, policy="bf16-training"), "json") for _ in range(2)}
    assert len(texts) == 1
