"""Every case of this folder: the audit under its naive policy names the culprit on the right line, the converted model
is right and still runs low what is harmless, and what is safe is not condemned. `expected` holds the tables."""

from __future__ import annotations

import math

import pytest
import torch

import precision_audit as pa
from precision_audit.policy import load as policy_named
from tests.cases import expected, judge

NAMES = expected.names()
CASES = tuple(name for name in NAMES if expected.short(name) in expected.CULPRITS)
LATER = tuple(name for name in NAMES if expected.short(name) in expected.LATER)
LOW = {"fp16": torch.float16, "bf16": torch.bfloat16}
SAFE = [(name, policy) for name in NAMES for policy in expected.safe_policies(name)]
EVERYWHERE = tuple(name for name in NAMES if expected.everywhere_policy(name))
SAFE_EVERYWHERE = [(name, policy) for name in NAMES for policy in expected.safe_everywhere(name)]


def test_the_tables_cover_the_folder() -> None:
    cases = {expected.short(name) for name in NAMES if name[0] == "c"}
    tables = (set(expected.CULPRITS), set(expected.LATER), set(expected.TRAINING), set(expected.FP8))
    assert cases == set().union(*tables) and len(cases) == sum(len(table) for table in tables)
    assert set(expected.BACKWARD) <= set(expected.CULPRITS)
    assert len(NAMES) == 52 and all(reason for _, reason in expected.LATER.values())
    # safe_modes of the cases without fp8, three of each of six controls; two each in training, and of three cases one
    assert len(SAFE) == 51 + 12 + 3 + 2  # c85 and c88 with scales


@pytest.mark.parametrize("name", CASES)
def test_the_audit_names_the_culprit_on_its_line(name: str) -> None:
    one = judge.judged(name, expected.naive_policy(name))
    told = one.report.findings if expected.short(name) == "c83" else one.alarms
    about = [finding for finding in told if judge.named(name, finding, one.report)]
    assert about, [f"{finding.rule} {finding.op}" for finding in told]
    assert any(judge.on_line(name, finding) for finding in about), [finding.source for finding in about]


@pytest.mark.parametrize("name", CASES)
def test_the_converted_model_is_right(name: str) -> None:
    policy = expected.naive_policy(name)
    one = judge.judged(name, policy)
    assert one.error <= judge.limit(name, policy)
    assert one.flips <= 0.01


@pytest.mark.parametrize("name", [name for name in CASES if expected.short(name) in expected.BACKWARD])
def test_gradients_are_right(name: str) -> None:
    policy = policy_named(expected.naive_policy(name))
    one = judge.judged(name, policy.name)
    assert one.gradient <= dict(policy.tolerances)["gradient_relative_l2"]
    about = [each for each in one.alarms if judge.named_op(name, each, one.report) and judge.on_line(name, each)]
    assert about and all(each.resolved for each in about)
    verification = one.report.verification
    assert verification is not None and verification.passed


@pytest.mark.parametrize("name", CASES)
def test_at_least_half_of_what_is_harmless_runs_low(name: str) -> None:
    report = judge.judged(name, expected.naive_policy(name)).report
    work = judge.work(name, report)
    assert work.nothing == (expected.short(name) in expected.ALL_KEPT)
    if expected.short(name) in expected.CHEAPER_HIGH:
        assert not work.half_low and judge.cheaper_high(name, report) == []
    else:
        assert work.half_low, work


@pytest.mark.parametrize("name", LATER)
def test_a_case_of_a_later_issue_converts(name: str) -> None:
    report = judge.judged(name, expected.naive_policy(name)).report
    assert report.verification is not None and report.decisions


@pytest.mark.parametrize(("name", "policy"), SAFE)
def test_what_is_safe_is_not_condemned(name: str, policy: str) -> None:
    one = judge.judged(name, policy)
    assert [f"{finding.rule} {finding.op}: {finding.message}" for finding in one.alarms] == []
    assert one.gradient <= dict(policy_named(policy).tolerances).get("gradient_relative_l2", 0.0)
    if name[0] == "k":
        assert one.error <= judge.limit(name, policy) and one.flips == 0


# Under the policies `…-everywhere` no class keeps anything high: what is found and kept high is so by evidence alone.


@pytest.mark.parametrize("name", [name for name in EVERYWHERE if expected.short(name) not in expected.BACKWARD])
def test_by_evidence_alone_the_audit_names_the_culprit(name: str) -> None:
    one = judge.judged(name, expected.everywhere_policy(name))
    told = one.report.findings if expected.short(name) == "c83" else one.alarms
    about = [finding for finding in told if judge.named(name, finding, one.report)]
    assert any(judge.on_line(name, finding) for finding in about), [f"{each.rule} {each.op}" for each in told]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_by_evidence_alone_the_converted_model_is_right(name: str) -> None:
    policy = expected.everywhere_policy(name)
    one = judge.judged(name, policy)
    assert one.error <= judge.limit(name, policy) and one.flips <= 0.01
    assert one.report.verification is not None and one.report.verification.passed


@pytest.mark.parametrize("name", EVERYWHERE)
def test_by_evidence_alone_half_of_what_is_harmless_runs_low(name: str) -> None:
    also = expected.ALSO_KEPT.get(expected.short(name), "")
    work = judge.work(name, judge.judged(name, expected.everywhere_policy(name)).report, also)
    assert work.half_low, work


@pytest.mark.parametrize(("name", "policy"), SAFE_EVERYWHERE)
def test_by_evidence_alone_what_is_safe_is_not_condemned(name: str, policy: str) -> None:
    one = judge.judged(name, policy)
    assert [f"{finding.rule} {finding.op}: {finding.message}" for finding in one.alarms] == []
    assert one.error <= judge.limit(name, policy) and one.flips == 0


def test_by_evidence_alone_all_cases_that_a_cast_breaks_are_judged() -> None:
    assert len(EVERYWHERE) == 35 and len(SAFE_EVERYWHERE) == 23 + 12


def test_tied_weights_stay_one_parameter() -> None:
    (name,) = (name for name in NAMES if expected.short(name) == "c83")
    case = expected.load(name)
    for policy in ("bf16-inference", "bf16-training"):
        module = pa.convert(case.build_model(), case.example_inputs(), policy=policy, verify=False).module
        tied = {id(module.get_parameter(path)) for path in case.EXPECT["tied"][0]}
        assert len(tied) == 1
        stored = {tensor.untyped_storage().data_ptr() for tensor in module.state_dict().values() if tensor.ndim == 2}
        assert len(stored) == 2  # fc.weight and the one that is shared


@pytest.mark.parametrize("name", CASES)
def test_the_case_fails_as_it_says(name: str) -> None:
    """The naive conversion is wrong here, too: eager, without this package; else the case would prove nothing."""
    case = expected.load(name)
    mode = case.EXPECT["naive"]
    if mode == "custom":
        assert case.custom_check()[0]
        return
    if expected.short(name) in expected.BACKWARD and mode in LOW:
        low = LOW[mode]
        assert judge.gradient_error(case, case.build_model().to(low), low, scale=1.0) == math.inf
        return
    if case.EXPECT["symptom"] == "crash-backward":
        with torch.autocast("cpu", torch.bfloat16):
            output = case.build_model()(*case.example_inputs())
        with pytest.raises(RuntimeError, match=case.EXPECT["error"]):
            case.loss(output).backward()
        return
    with torch.no_grad():
        wanted = list(judge.tensors(case.build_model().eval()(*case.example_inputs())))
        try:
            given = list(judge.tensors(_naive(case, mode)))
        except RuntimeError as error:
            assert case.EXPECT["symptom"] == "crash" and case.EXPECT["error"] in str(error)
            return
    worst = max(judge.difference(high, low) for high, low in zip(wanted, given, strict=True))
    assert worst > judge.limit(name, expected.naive_policy(name))


CONTROLS = [name for name in NAMES if expected.short(name) in ("k01", "k02", "k08", "k10")]


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("policy", ["fp8-training-hopper", expected.POLICIES["fp8-train"]])
def test_fp8_accuses_no_control(name: str, policy: str) -> None:
    """Where no linear has a fitting size, that nothing was swapped is said (PA505)."""
    assert [each.message for each in judge.judged(name, policy).alarms if each.rule != "PA505"] == []


def test_a_scale_per_row_is_safe_with_one_huge_token() -> None:
    (name,) = (name for name in NAMES if expected.short(name) == "c87")
    one = judge.judged(name, "fp8-training-hopper")
    assert one.alarms == () and one.report.plan.swaps
    assert one.error <= judge.limit(name, "fp8-training-hopper")


def _in_fp8(model: torch.nn.Module, args: tuple[torch.Tensor, ...], mode: str) -> object:
    low = torch.float8_e4m3fn
    if mode == "fp8-train":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        return convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))(*args)
    with torch.no_grad():
        for parameter in model.parameters():
            if mode == "fp8-storage":
                parameter.data = parameter.data.to(low)
            elif parameter.ndim == 2:
                parameter.copy_(parameter.to(low).float())
    if mode == "fp8-storage":
        return model(*(each.bfloat16() for each in args))
    return model(*(each.to(low).float() for each in args))


def _naive(case: object, mode: str) -> object:
    model, args = case.build_model().eval(), case.example_inputs()  # type: ignore[attr-defined]
    if mode.startswith("fp8"):
        return _in_fp8(model, args, mode)
    if mode == "autocast-bf16":
        with torch.autocast("cpu", torch.bfloat16):
            return model(*args)
    low = LOW[mode]
    return model.to(low)(*(each.to(low) if each.is_floating_point() else each for each in args))
