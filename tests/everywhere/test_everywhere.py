"""Models that no rule was written for, under the policies without classes: what breaks is named on its line and mended,
what is harmless runs low, and clean models are left alone. That a cast breaks them is shown by eager PyTorch."""

from __future__ import annotations

import copy
import math
from functools import cache

import pytest
import torch

import precision_audit as pa
from precision_audit import ops
from precision_audit.policy import load as policy_named
from precision_audit.records import Report
from tests.cases import judge
from tests.everywhere import (  # noqa: F401  (their models)
    accuracy,
    behind,
    clean,
    counting,
    kernels,
    overflow,
    saturating,
    sums,
    vanishing,
)
from tests.everywhere.models import MODELS
from tests.models import tensors

LOW = {"fp16": torch.float16, "bf16": torch.bfloat16}
BREAKING = [(name, low) for name, each in MODELS.items() for low in each.breaks]
CLEAN = [(name, low) for name, each in MODELS.items() if not each.breaks for low in LOW]


def test_there_are_enough() -> None:
    assert len(BREAKING) >= 90 and len(CLEAN) >= 36


@pytest.mark.parametrize(("name", "low"), BREAKING)
def test_what_breaks_is_named_and_mended(name: str, low: str) -> None:
    limit = _limit(low)
    assert _eager(name, low) > limit
    report, error = _converted(name, low)
    told = {each.source.line for each in report.findings if each.severity != "note" and each.source}
    assert told & MODELS[name].lines(), [(each.rule, each.op, each.message) for each in report.findings]
    assert error <= limit
    assert report.verification is not None and report.verification.passed


@pytest.mark.parametrize(("name", "low"), BREAKING)
def test_half_of_what_is_harmless_runs_low(name: str, low: str) -> None:
    report, _ = _converted(name, low)
    tensor = {value: made for op in report.graph.ops for value, made in zip(op.values, op.outputs, strict=True)}
    formats = dict(report.plan.formats)
    work = {True: [0, 0], False: [0, 0]}
    for op in judge.may_run_low(report.graph, list(MODELS[name].kept)):
        read = [tensor[operand.value] for operand in op.operands]
        runs_low = formats.get(op.key) == low
        work[runs_low][0] += ops.flops(op, read)
        work[runs_low][1] += ops.bytes_moved(op, read, "")
    assert work[True][0] >= work[False][0] and work[True][1] >= work[False][1], work


@pytest.mark.parametrize(("name", "low"), CLEAN)
def test_what_is_clean_is_left_alone(name: str, low: str) -> None:
    assert _eager(name, low) <= _limit(low)
    report, error = _converted(name, low)
    assert [(each.rule, each.op, each.message) for each in report.findings if each.severity != "note"] == []
    assert error <= _limit(low)
    kept = {
        op.op for op in report.graph.ops if op.key in {each.op for each in report.decisions if each.chosen == "fp32"}
    }
    assert kept <= set(MODELS[name].kept), kept  # what leaves the range is, although it does no harm


@cache
def _converted(name: str, low: str) -> tuple[Report, float]:
    """The report, and the worst relative L2 of the converted model's outputs against the eager model in fp32."""
    model, args = MODELS[name].made()
    result = pa.convert(model, args, policy=f"{low}-everywhere", device=judge.DEVICE)
    with torch.no_grad():
        read, named = result.module.as_read(args, {})
        found = list(tensors(result.module(*read, **named)))
        return result.report, _worst(list(tensors(model(*args))), found)


def _eager(name: str, low: str) -> float:
    """The same of the eager model, cast with its float inputs; infinite where it raises."""
    model, args = MODELS[name].made()
    cast = copy.deepcopy(model).to(LOW[low])
    with torch.no_grad():
        wanted = list(tensors(model(*args)))
        try:
            found = list(tensors(cast(*(each.to(LOW[low]) if each.is_floating_point() else each for each in args))))
        except (RuntimeError, NotImplementedError, IndexError, ValueError):
            return math.inf
    return _worst(wanted, found)


def _worst(wanted: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    return max(judge.difference(high, made) for high, made in zip(wanted, found, strict=True))


def _limit(low: str) -> float:
    return dict(policy_named(f"{low}-everywhere").tolerances)["relative_l2"]
