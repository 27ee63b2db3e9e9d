"""The rules about quantisation on models that were written before them: the culprit named, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import precision_audit as pa
from tests.rules import quantised_models as models

FAMILY = tuple(f"PA41{i}" for i in range(7))


def audited(make: Any, args: tuple[Any, ...], policy: str, tmp_path: Path) -> pa.Report:
    if "\n" in policy:
        file = tmp_path / "mine.yaml"
        file.write_text(policy, encoding="utf-8")
        policy = str(file)
    torch.manual_seed(0)
    return pa.audit(make(), args, policy=policy, device="h100", verify=False)


@pytest.mark.parametrize("case", models.BAD, ids=[case[0] for case in models.BAD])
def test_the_culprit_is_named(case: models.Bad, tmp_path: Path) -> None:
    _, make, args, policy, rules, op = case
    report = audited(make, args, policy, tmp_path)
    alarms = [each for each in report.findings if each.rule in FAMILY and each.severity != "note"]
    about = [each for each in alarms if each.rule in rules and (each.op == op or not op)]
    assert about, [(each.rule, each.severity, each.op, each.message) for each in report.findings]
    assert all(each.source is not None and each.source.file == models.__file__ for each in about)
    if policy in (models.TENSORWISE, models.ROWWISE):
        assert all(each.resolved for each in about)
        assert op not in {swap.op for swap in report.plan.swaps}
        assert {each.op for each in alarms} == {op}


@pytest.mark.parametrize("case", models.GOOD, ids=[case[0] for case in models.GOOD])
def test_nobody_else_is_accused(case: Any, tmp_path: Path) -> None:
    _, make, args, policy = case
    report = audited(make, args, policy, tmp_path)
    alarms = [each for each in report.findings if each.rule in FAMILY and each.severity != "note"]
    assert alarms == []
    if policy in (models.TENSORWISE, models.ROWWISE):
        assert len(report.plan.swaps) == sum(op.op == "linear" for op in report.graph.ops)
