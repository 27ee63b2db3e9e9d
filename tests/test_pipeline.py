"""The pipeline's own promises: what audit and convert do with a model, beside the laws of test_identity."""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit import analyse
from precision_audit.records import InputError
from precision_audit.report import render


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


def test_an_applied_plan_counts_under_an_autocast_policy_too() -> None:
    model, args = perceptron(), (torch.randn(8, 64),)
    first = pa.convert(model, args, policy="amp-cpu-bf16")
    fewer = replace(first.plan, casts=first.plan.casts[:-1])
    assert pa.convert(model, args, policy="amp-cpu-bf16", apply_plan=first.plan).plan == first.plan
    assert pa.convert(model, args, policy="amp-cpu-bf16", apply_plan=fewer, verify=False).plan == fewer


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
    with pytest.raises(InputError, match="calibration batch 0 is an int; expected a tuple"):
        pa.audit(model, args, calibration=[3])  # type: ignore[list-item]


def test_the_same_input_gives_the_same_report() -> None:
    from precision_audit import report

    torch.manual_seed(0)
    model, args = perceptron(), (torch.randn(8, 64),)
    texts = {report.render(pa.audit(model, args, policy="bf16-training"), "json") for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'input'; forward takes"),
        ((torch.ones(2, 64), 3), {}, "too many positional arguments"),
        ((torch.ones(2, 64),), {"mask": 3}, "unexpected keyword argument 'mask'"),
    ],
)
def test_a_call_that_forward_does_not_take(args: tuple, kwargs: dict, words: str) -> None:
    with pytest.raises(InputError, match=f"Sequential, example inputs: .*{words}"):
        pa.audit(perceptron(), args, kwargs)
    with pytest.raises(InputError, match="Sequential, calibration batch 0"):
        pa.audit(perceptron(), (torch.ones(2, 64),), calibration=[((), {})])


class Turns(nn.Module):
    """A rotation by complex numbers: parts in fp16 would make a format without kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.angle = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.polar(x.abs(), x) * torch.exp(1j * self.angle(x)))


def test_complex_numbers_are_made_of_fp32_parts() -> None:
    torch.manual_seed(0)
    model, x = Turns(), torch.randn(4, 8)
    result = pa.convert(model, (x,), policy="fp16-inference")
    assert result.report.verification is not None
    assert result.report.verification.passed
    torch.testing.assert_close(result.module(x), model(x), rtol=0.02, atol=0.02)


class Derived(nn.Module):
    """A directional derivative by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda y: self.a(y).tanh(), (x,), (torch.ones_like(x),))[1]


@pytest.mark.parametrize("policy", ["bf16-inference", "amp-cpu-bf16"])
def test_a_derivative_inside_the_model_stays_as_captured(policy: str) -> None:
    model, x = Derived(), torch.randn(3, 4)
    result = pa.convert(model, (x,), policy=policy)
    torch.testing.assert_close(result.module.eval()(x).float(), model(x), rtol=0.02, atol=0.02)
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0


def test_plain_fp16_beside_an_autocast_policy_runs() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1))
    found = pa.audit(model, (torch.randn(4, 16),), policy="amp-cuda-fp16").verification
    assert found is not None
    assert all(output.plain_relative_l2 is not None for output in found.outputs)


class Tracked(nn.Module):
    """Batch norm in training mode, an expanded buffer and one that cannot be written."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("wide", torch.arange(4.0).expand(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x) + self.wide
        return y


@pytest.mark.parametrize("policy", ["bf16-training", "fp32"])
def test_a_buffer_of_the_users_is_never_written_not_even_with_what_it_holds(policy: str) -> None:
    model, x = Tracked(), torch.randn(3, 4)
    loss = model(x).square().sum()  # its backward pass fails where a buffer has been written since
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    pa.audit(model, (x,), policy=policy)
    assert {name: buffer._version for name, buffer in model.named_buffers()} == versions
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    loss.backward()


def test_a_read_only_buffer(tmp_path: Path) -> None:
    np.ones(4, np.float32).tofile(tmp_path / "scale.bin")
    mapped = np.memmap(tmp_path / "scale.bin", np.float32, "r")
    model = nn.Linear(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of an array that cannot be written
        model.register_buffer("scale", torch.from_numpy(mapped))
    assert pa.audit(model, (torch.randn(2, 4),)).verdict == "READY"


@pytest.mark.parametrize("policy", ["bf16-inference", "bf16-training", "amp-cpu-bf16"])
def test_control_flow_that_stays_whole_is_audited(policy: str) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x)
            made: torch.Tensor = torch.cond(y.sum() > 0, lambda t: t.relu(), lambda t: t.neg(), (y,))
            return made

    assert pa.audit(Branch(), (torch.randn(2, 4),), policy=policy).verdict in ("READY", "READY WITH CHANGES")


def test_random_generators_are_as_they_were_also_after_a_refusal() -> None:
    class Refused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            random.random()
            np.random.rand()
            return x[: int(torch.rand(2).sum() * 0 + x.sum().item())]

    torch.manual_seed(3)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    with contextlib.suppress(InputError):
        pa.audit(Refused(), (torch.ones(4),))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_an_audit_in_inference_mode() -> None:
    model = nn.Linear(4, 4)
    with torch.inference_mode():
        assert pa.audit(model, (torch.randn(2, 4),)).verdict == "READY"


def test_a_measurement_that_fails_is_told_and_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(analyse, "STRICT", False)
    monkeypatch.setattr(analyse, "sensitivity", fails)
    report = pa.audit(nn.Linear(4, 4), (torch.randn(2, 4),))
    assert report.facts.beside and not report.facts.shares
    assert any(
        "where the outputs' error comes from" in note and "no such kernel" in note for note in report.facts.notes
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "options", "words"),
    [
        (torch.randn(8, 64), None, {}, r"^args is a Tensor; expected a tuple of the model's arguments: write \(x,\)$"),
        ({"input": torch.randn(8, 64)}, None, {}, r"^args is a dict; expected a tuple .*: give them as kwargs=$"),
        ((), (torch.randn(8, 64),), {}, "^kwargs is a tuple; expected a dict of arguments by name$"),
        ((torch.randn(8, 64),), None, {"polcy": "fp32"}, "has no argument polcy; did you mean policy[?]$"),
        ((torch.randn(8, 64),), None, {"calibration_data": []}, "did you mean calibration[?]$"),
        ((torch.randn(8, 64),), None, {"optimiser": None}, "did you mean optimizer[?]$"),
        ((torch.randn(8, 64),), None, {"loss": 5}, "^loss is an int; expected a function of the model's output"),
        ((torch.randn(8, 64),), None, {"optimizer": "adam"}, "^optimizer is a str; expected a callable of parameters"),
        ((torch.randn(8, 65),), None, {}, r"^Sequential does not run on these inputs.*8x65 and 64x128.*Give inputs of"),
    ],
)
@pytest.mark.parametrize("function", [pa.audit, pa.convert])
def test_arguments_that_cannot_be_meant_get_one_line(
    function: Any, args: Any, kwargs: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words) as raised:
        function(perceptron(), args, kwargs, **options)
    assert "\n" not in str(raised.value)
    if "has no argument" in words:
        assert str(raised.value).startswith(f"{function.__name__} has no argument ")


@pytest.mark.parametrize(
    ("policy", "verdict"), [("fp16-everywhere", "NOT ENOUGH EVIDENCE"), ("bf16-everywhere", "READY")]
)
def test_a_model_that_is_low_already(policy: str, verdict: str) -> None:
    """Under fp16 nothing of a bf16 model is in fp16, neither of the plan nor of a cast: no figure is made up."""
    report = pa.audit(perceptron().bfloat16(), (torch.randn(8, 64).bfloat16(),), policy=policy)
    assert report.verdict == verdict
    assert report.verification is not None and report.cost is not None
    assert [each.plain_relative_l2 for each in report.verification.outputs] == [None]
    assert report.cost.touchable == 0
    text = render(report, "full")
    assert "plain fp16 6" not in text and ("nothing was lowered" in text) == (policy == "fp16-everywhere")
