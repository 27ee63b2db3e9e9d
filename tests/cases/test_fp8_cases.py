"""Cases whose failure is one of fp8 and of the device: the layer that its kernels refuse is named on its line, stays in
the low format, and the rest is swapped and right. `expected.FP8` holds the table."""

from __future__ import annotations

from typing import Any

import pytest

from precision_audit.policy import load as policy_named
from tests.cases import expected, judge

NAMES = [name for name in expected.names() if expected.short(name) in expected.FP8]
SAFE = {"fp8-train": "fp8-training-hopper"}  # the case's own words for a policy under which it must be right


def _h100(name: str) -> Any:
    """Judged for the policy's own device: a CPU has no fp8 kernels that could refuse."""
    return judge.judged(name, expected.FP8[expected.short(name)][0], "h100")


@pytest.mark.parametrize("name", NAMES)
def test_the_layer_is_refused_by_name_on_its_line(name: str) -> None:
    _, rule, line = expected.FP8[expected.short(name)]
    case, report = expected.load(name), _h100(name).report
    culprit = case.EXPECT["culprit_fqn"]
    found = [each for each in report.findings if each.rule == rule and each.module == culprit]
    assert len(found) == 1
    assert found[0].source is not None and line in found[0].source.text
    size = case.build_model().get_submodule(culprit).out_features
    assert f"N={size} is not a multiple of 16" in found[0].message
    assert "pad N from 15 to 16" in found[0].remedy
    assert [swap.module for swap in report.plan.swaps] == ["body"]
    assert [each.module for each in report.plan.refusals] == [culprit]
    chosen = {each.op: each.chosen for each in report.decisions}
    assert chosen[f"{culprit}/linear#0"] == "bf16" and chosen["body/linear#0"] == "fp8 rowwise"


@pytest.mark.parametrize("name", NAMES)
def test_the_conversion_is_right_and_its_shapes_pass(name: str) -> None:
    case, one = expected.load(name), _h100(name)
    for mode in case.EXPECT["safe_modes"]:
        assert SAFE[mode] == expected.naive_policy(name)
    assert one.error <= case.EXPECT["safe_tol"] and one.flips == 0
    assert one.report.verification is not None and one.report.verification.passed
    assert one.report.verification.shapes == "pass"
    tolerances = dict(policy_named(one.report.meta.policy).tolerances)
    assert one.error <= tolerances["relative_l2"]


@pytest.mark.parametrize("name", NAMES)
def test_fp8_was_not_asked_for_in_vain(name: str) -> None:
    """PA505 and NOT ENOUGH EVIDENCE are for models of which nothing is swapped."""
    report = _h100(name).report
    assert "PA505" not in {each.rule for each in report.findings} and report.verdict != "NOT ENOUGH EVIDENCE"


@pytest.mark.parametrize("name", NAMES)
def test_the_case_fails_as_it_says(name: str) -> None:
    failed, told = expected.load(name).custom_check()
    assert failed, told
