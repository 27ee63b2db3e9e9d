"""The rules about quantisation on models that were written before them: the culprit named, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import precision_audit as pa
from precision_audit.formats import FORMATS
from precision_audit.quantise import SCHEMES, product
from precision_audit.recipes import RECIPES
from precision_audit.records import Op, Quantised, Range
from precision_audit.rules import pa410_sensitive_layer
from precision_audit.rules.pa410_sensitive_layer import USUAL
from precision_audit.rules.pa413_unscaled_cast import coarse
from precision_audit.rules.swapping import Swapping
from tests.rules import quantised_models as models

FAMILY = tuple(f"PA41{i}" for i in range(7))


def audited(make: Any, args: tuple[Any, ...], policy: str, tmp_path: Path) -> pa.Report:
    text = policy
    if "\n" in policy:
        file = tmp_path / "mine.yaml"
        file.write_text(policy, encoding="utf-8")
        policy = str(file)
    torch.manual_seed(0)
    device = "b200" if "device: b200" in text else "h100"
    return pa.audit(make(), args, policy=policy, device=device, verify=False)


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


def test_a_rule_that_is_off_leaves_the_swap_and_a_note(tmp_path: Path) -> None:
    (case,) = (case for case in models.BAD if case[0] == "a sink token")
    report = audited(case[1], case[2], case[3] + "hazards: {PA411: off}\n", tmp_path)
    (told,) = (each for each in report.findings if each.rule == "PA411")
    assert told.severity == "note" and not told.resolved and told.overridden.startswith("turned off by policy")
    assert len(report.plan.swaps) == 2


def test_what_a_rule_keeps_from_being_swapped_runs_low_and_says_why(tmp_path: Path) -> None:
    (case,) = (case for case in models.BAD if case[0] == "one huge weight")
    report = audited(case[1], case[2], case[3], tmp_path)
    (decision,) = (each for each in report.decisions if each.op == case[5])
    assert decision.chosen == "bf16" and decision.reason.startswith("rule PA411: no swap; ")
    assert not [each for each in report.findings if each.rule == "PA401"]


def test_a_pin_to_fp8_runs_low(tmp_path: Path) -> None:
    report = audited(models.Perceptron, (models.normal(32, 64),), models.pinned("linear"), tmp_path)
    chosen = {each.op: each.chosen for each in report.decisions if each.op.endswith("linear#0")}
    assert set(chosen.values()) == {"bf16"} and len(chosen) == 3
    assert all("fp8 without scales" in each.reason for each in report.decisions if each.op in chosen)


def test_a_layer_before_training_has_nothing_to_scale_by(tmp_path: Path) -> None:
    """Zero is quantised to zero: a note, and the swap stays."""
    report = audited(models.Lora, (models.normal(32, 64),), models.ROWWISE, tmp_path)
    told = [(each.rule, each.severity, each.op) for each in report.findings if each.rule == "PA412"]
    assert told == [("PA412", "note", "b/linear#0")]


def test_torchaos_nvfp4_makes_nan_of_a_layer_of_zeros_which_is_kept(tmp_path: Path) -> None:
    report = audited(lambda: models.Lora(32), (models.normal(32, 64),), models.NVFP4, tmp_path)
    told = [(each.rule, each.severity, each.op, each.resolved) for each in report.findings if each.rule == "PA412"]
    assert told == [("PA412", "error", "b/linear#0", True)]
    assert not [each for each in report.findings if each.rule in ("PA410", "PA411") and each.op == "b/linear#0"]
    assert "b/linear#0" not in {swap.op for swap in report.plan.swaps} and report.plan.swaps


@pytest.mark.parametrize("format", ("fp8_e4m3fn", "fp8_e5m2"))
@pytest.mark.parametrize("below", (0, -1, -2, -4, -6))
def test_what_a_cast_of_low_numbers_costs(format: str, below: int) -> None:
    """Told from powers of two alone; beside it torch's own cast of normal numbers around a multiple of the steps."""
    row = FORMATS[format]
    assert row.min_subnormal is not None
    x = models.normal(1 << 15).double() * row.min_subnormal * 2.0**below
    cast = x.to(getattr(torch, row.dtype)).double()
    measured = float((cast - x).norm() / x.norm())
    exponents = torch.frexp(x)[1] - 1
    counts = tuple((int(e), int((exponents == e).sum())) for e in exponents.unique())
    told = coarse(Range("x", "OBSERVED", x.numel(), float(x.abs().max()), 0.0, 0.0, 0.0, histogram=counts), row)
    assert told == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_usual_of_a_format(scheme: str) -> None:
    """The error of a product of normal numbers, and never more than the rule allows for."""
    x, w = models.normal(128, 256), models.normal(128, 256, seed=2)
    expected, made = x @ w.mT, product(x, w, None, scheme)
    usual = USUAL[SCHEMES[scheme].element]
    assert 0.8 * usual < float((made - expected).norm() / expected.norm()) < 1.1 * usual


@pytest.mark.parametrize(
    ("whole", "rows", "told"),
    [(0.04, 0.04, ""), (0.04, 0.079, ""), (0.04, 0.2, "more than 20 %"), (0.4, 0.04, "more than 4 %")],
)
def test_a_figure_that_few_rows_decide_is_called_so(whole: float, rows: float, told: str) -> None:
    recipe = RECIPES["torchao", "tensorwise"]
    op = Op("fc/linear#0", "aten.linear.default", "linear", "matmul", "fc", "Linear", (), ())
    made = Swapping(op, recipe, {recipe.scheme: Quantised(op.key, recipe.scheme, whole, rows=rows)})
    said = pa410_sensitive_layer._by_rows(made)
    assert told in said and bool(told) == bool(said)
