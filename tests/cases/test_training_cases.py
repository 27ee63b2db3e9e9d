"""Cases that fail in training: the audit names the culprit on its line, and after the remedy the step is right."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit.records import Finding, Report
from tests.cases import expected, judge

NAMES = {expected.short(name): name for name in expected.names()}
SAFE = {"bf16": "bf16-training", "autocast-bf16": "amp-cpu-bf16"}
QUIET = [
    (short, SAFE[mode]) for short in expected.TRAINING for mode in expected.load(NAMES[short]).EXPECT["safe_modes"]
]


def _case(short: str) -> ModuleType:
    return expected.load(NAMES[short])


def _options(case: ModuleType) -> dict[str, Any]:
    names = {"loss": "loss", "make_optimizer": "optimizer"}
    return {option: getattr(case, name) for name, option in names.items() if hasattr(case, name)}


def _audit(short: str, policy: str) -> Report:
    case = _case(short)
    return pa.audit(case.build_model(), case.example_inputs(), policy=policy, device=judge.DEVICE, **_options(case))


def _alarms(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity != "note"]


@pytest.mark.parametrize("short", sorted(expected.TRAINING))
def test_the_audit_names_the_culprit_on_its_line(short: str) -> None:
    policy, rules, text = expected.TRAINING[short]
    report = _audit(short, policy)
    told = {finding.rule: finding for finding in reversed(_alarms(report))}
    assert set(rules) <= set(told), sorted(told)
    case = _case(short)
    for rule in rules:
        source = told[rule].source
        if text:
            assert source is not None and source.file == case.__file__ and text in source.text
        assert told[rule].remedy and told[rule].evidence.numbers
    ops = {op.key: op.op for op in report.graph.ops}
    culprit = case.EXPECT["culprit_op"]
    assert culprit.startswith("<") or culprit in {ops.get(told[rule].op) for rule in rules}


@pytest.mark.parametrize(("short", "policy"), QUIET)
def test_what_is_safe_is_not_condemned(short: str, policy: str) -> None:
    report = _audit(short, policy)
    assert [f"{finding.rule} {finding.op}: {finding.message}" for finding in _alarms(report)] == []


@pytest.mark.parametrize("name", [name for name in expected.names() if name[0] == "k"])
@pytest.mark.parametrize("policy", ["bf16-training", "fp16-training"])
def test_controls_stay_quiet_in_training(name: str, policy: str) -> None:
    """Under a plain mean of squares. That fp16 wants a loss scale is true of any mean."""
    case = expected.load(name)

    def loss(output: Any) -> torch.Tensor:
        floats = [each for each in judge.tensors(output) if each.is_floating_point()]
        return torch.stack([each.float().pow(2).mean() for each in floats]).sum()

    report = pa.audit(case.build_model(), case.example_inputs(), policy=policy, device=judge.DEVICE, loss=loss)
    open_ones = [finding for finding in _alarms(report) if finding.open and finding.rule != "PA601"]
    assert [f"{finding.rule} {finding.op}: {finding.message}" for finding in open_ones] == []


def test_c51_the_counter_counts_on() -> None:
    case = _case("c51")
    module = pa.convert(case.build_model(), case.example_inputs(), policy="bf16-training").module
    for _ in range(case.EXPECT["steps"]):
        module(*case.example_inputs())
    assert module.get_buffer("count").item() == case.EXPECT["steps"]


def test_c53_the_running_statistics_stay_finite() -> None:
    case = _case("c53")
    module = pa.convert(case.build_model(), case.example_inputs(), policy="fp16-training").module
    module(*case.example_inputs())
    plain = case.build_model()
    plain(*case.example_inputs())
    found, wanted = module.get_buffer("1.running_mean"), plain.get_buffer("1.running_mean")
    assert torch.allclose(found, wanted, rtol=1e-2)


@pytest.mark.parametrize(("short", "policy"), [("c54", "fp16-training"), ("c56", "bf16-training")])
def test_the_parameters_move_as_in_fp32(short: str, policy: str) -> None:
    case = _case(short)
    options = _options(case)
    result = pa.convert(case.build_model(), case.example_inputs(), policy=policy, device=judge.DEVICE, **options)
    training = result.report.training
    assert training is not None and training.scale is not None
    reference = case.build_model()
    start = [parameter.detach().clone() for parameter in reference.parameters()]
    _train(reference, case, 1.0)
    _train(result.module, case, training.scale.recommended)
    for before, wanted, found in zip(start, reference.parameters(), result.module.parameters(), strict=True):
        assert torch.isfinite(found).all()
        moved = wanted.detach() - before
        assert (found.detach() - wanted).norm() <= 0.1 * moved.norm() and moved.norm() > 0


def test_c59_the_recommended_scale_saves_the_gradients() -> None:
    case = _case("c59")
    result = pa.convert(case.build_model(), case.example_inputs(), policy="fp16-training", loss=case.loss)
    assert result.report.training is not None and result.report.training.scale is not None
    scale = result.report.training.scale.recommended
    reference = case.build_model()
    case.loss(reference(*case.example_inputs())).backward()
    (case.loss(result.module(*case.example_inputs())) * scale).backward()
    for name, parameter in reference.named_parameters():
        found = result.module.get_parameter(name).grad
        assert found is not None and parameter.grad is not None
        assert (found / scale - parameter.grad).norm() <= 1e-2 * parameter.grad.norm()


def _train(model: nn.Module, case: ModuleType, scale: float) -> None:
    optimizer = case.make_optimizer(model.parameters())
    for _ in range(case.EXPECT["steps"]):
        optimizer.zero_grad()
        (case.loss(model(*case.example_inputs())) * scale).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= scale
        optimizer.step()
