"""The verdict's rules, one by one, and their order."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from precision_audit.records import (
    Comparison,
    Evidence,
    Finding,
    Graph,
    Op,
    Plan,
    Policy,
    Refusal,
    Rule,
    Severity,
    Step,
    Steps,
    Swap,
    Verification,
)
from precision_audit.report.verdict import Reason, judge, next_steps, summary

GRAPH = Graph((), (), "inference")
PLAN = Plan("p", "inference", "fp32", "bf16", (), ())
POLICY = Policy("p", "p.yaml", "", "inference", "fp32", "bf16", ())
FP8 = Policy("p", "p.yaml", "", "training", "fp32", "bf16", (Rule("r", "p.yaml:1", "fp8-eligible", backend="torchao"),))
SWAP = Swap("fc1/linear#0", "fc1", "torchao", "rowwise", 64, 64, 64)
WORTHLESS = Refusal("fc1/linear#0", "fc1", "torchao", "not worth it: predicted 2 µs", not_worth=True)
REFUSAL = Refusal("fc2/linear#0", "fc2", "torchao", "N=10 is not a multiple of 16")


def _finding(severity: Severity, resolved: bool = False) -> Finding:
    return Finding("PA101", severity, "fc/linear#0", "fc", "text", Evidence("PROVED", ""), None, "mend it", resolved)


def _compared(name: str, passed: bool) -> Comparison:
    return Comparison(name, 0.5, 0.5, 6.0, 0.9, 0, 0, None, None, 0.1, passed)


PASSED = Verification(True, (_compared("output", True),))
EMPTY = replace(_compared("output", True), compared=False)


def _plan(*swaps: Swap, refusals: tuple[Refusal, ...] = ()) -> Plan:
    return Plan("p", "training", "fp32", "bf16", (), (), swaps=swaps, refusals=refusals)


def _judge(**options: Any) -> tuple[str, tuple[Reason, ...]]:
    chosen = {"findings": (), "graph": GRAPH, "plan": PLAN, "verification": PASSED, "policy": POLICY} | options
    return judge(**chosen)


UNKNOWN = Graph((Op("a/odd#0", "", "odd", "unknown", "", "", (), ()),), (), "inference")
HELD = Swap("fc1/linear#0", "fc1", "torchao", "rowwise", 64, 64, "B", ("B % 16 == 0 in backward",))


@pytest.mark.parametrize(
    ("options", "verdict", "reason"),
    [
        ({}, "READY", ""),
        ({"findings": (_finding("note"),)}, "READY", ""),
        ({"findings": (_finding("error", True), _finding("warning", True))}, "READY", ""),
        ({"findings": (_finding("warning"),)}, "READY WITH CHANGES", ""),
        ({"plan": _plan(HELD), "policy": FP8}, "READY WITH CHANGES", "B % 16 == 0 in backward must hold"),
        ({"plan": _plan(SWAP), "policy": FP8}, "READY", ""),
        ({"findings": (_finding("error"),)}, "NOT READY", "unresolved PA101"),
        ({"verification": Verification(False, (_compared("output", False),))}, "NOT READY", "output above the limit"),
        (
            {"verification": Verification(False, (), (_compared("w", False), _compared("v", True)))},
            "NOT READY",
            "1 gradient above the limit",
        ),
        ({"verification": Verification(False, (), shapes="fc1: 24")}, "NOT READY", "shapes refused by the device"),
        ({"verification": Verification(False, ())}, "NOT READY", "verification failed"),
        ({"verification": None}, "NOT ENOUGH EVIDENCE", "nothing was run"),
        ({"made_up": "yes"}, "NOT ENOUGH EVIDENCE", "inputs made up by the tool"),
        ({"graph": UNKNOWN}, "NOT ENOUGH EVIDENCE", "1 op in no table: odd"),
        ({"policy": FP8}, "NOT ENOUGH EVIDENCE", "fp8 asked for and nothing swapped"),
        ({"verification": Verification(True, (EMPTY,), noise=1.0)}, "NOT ENOUGH EVIDENCE", "the reference differs"),
        ({"verification": Verification(True, ())}, "NOT ENOUGH EVIDENCE", "nothing was compared: there is no output"),
        ({"verification": Verification(True, (EMPTY,))}, "NOT ENOUGH EVIDENCE", "nothing was compared: no output has"),
        ({"verification": Verification(True, (EMPTY, _compared("a", True)))}, "READY", ""),
        ({"policy": FP8, "plan": _plan(refusals=(REFUSAL,))}, "NOT ENOUGH EVIDENCE", "fp8 asked for and nothing"),
        ({"policy": FP8, "plan": _plan(refusals=(REFUSAL, WORTHLESS))}, "READY", ""),
        ({"findings": (_finding("error"),), "verification": None}, "NOT READY", "unresolved PA101"),
    ],
)  # fmt: skip
def test_rules(options: dict[str, Any], verdict: str, reason: str) -> None:
    found, reasons = _judge(**options)
    assert found == verdict
    assert reasons[0].text.startswith(reason) if reason else reasons == ()


def test_summary_counts_what_is_left_and_says_why() -> None:
    findings = (_finding("warning"), _finding("warning"), _finding("error", True))
    text = summary("READY WITH CHANGES", (), findings, _plan(SWAP, refusals=(REFUSAL,)), FP8)
    assert text == "0 errors, 2 warnings, 0 notes (1 more resolved by the plan)   Float8Linear: 1 of 2 linears"
    assert (
        summary("NOT READY", (Reason("a"), Reason("b"), Reason("c")), (), PLAN, POLICY)
        == "0 errors, 0 warnings, 0 notes   a   b"
    )


def test_summary_says_that_nothing_was_worth_it() -> None:
    text = summary("READY", (), (), _plan(refusals=(WORTHLESS, REFUSAL)), FP8)
    assert text.endswith("Float8Linear: 0 of 2 linears, none worth it")


def _steps(verdict: Any, reasons: tuple[Reason, ...] = (), *findings: Finding, **options: Any) -> tuple[str, ...]:
    return next_steps(verdict, reasons, findings, model="my model.py", policy="fp16", **options)


@pytest.mark.parametrize("verdict", ["READY", "READY WITH CHANGES"])
def test_what_is_ready_is_converted(verdict: str) -> None:
    assert _steps(verdict) == ("precision-audit convert 'my model.py' --policy fp16 -o out/",)


def test_what_is_not_ready_is_looked_into_and_mended() -> None:
    _, reasons = _judge(findings=(_finding("error"),))
    first, parted, last = _steps("NOT READY", reasons, _finding("error"), failed="fc/linear#0")
    assert first == "precision-audit 'my model.py' --policy fp16 -v"
    assert "fc/linear#0" in parted and last == "PA101 fc: mend it"
    _, reasons = _judge(findings=(_finding("error"),), made_up="inputs")
    assert "--input SHAPE" in _steps("NOT READY", reasons)[0]  # a failure on inputs of the tool's own


def test_an_output_above_the_limit_is_mended_by_a_search_within_it() -> None:
    policy = replace(POLICY, tolerances=(("relative_l2", 0.03),))
    verdict, reasons = _judge(verification=Verification(False, (_compared("output", False),)), policy=policy)
    first, second = _steps(verdict, reasons)
    assert first == "precision-audit search 'my model.py' --policy fp16 --budget relative_l2=0.03"
    assert second == "precision-audit 'my model.py' --policy fp16 -v"
    judged = _steps(verdict, reasons, options="--policy fp16 --apply-plan plan.yaml")  # a search takes no plan
    assert judged == ("precision-audit 'my model.py' --policy fp16 --apply-plan plan.yaml -v",)


ODD = replace(_finding("warning"), rule="PA504", module="a", remedy="a rule decides it")
UNSWAPPED = replace(_finding("warning"), rule="PA505", module="", remedy="a policy without fp8")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"verification": None}, ["precision-audit 'my model.py' --policy fp16 --checkpoint W.safetensors"]),
        ({"made_up": "yes"}, ["precision-audit 'my model.py' --policy fp16 --input SHAPE:FORMAT[:LOW..HIGH], or"]),
        ({"graph": UNKNOWN}, ["PA504 a: a rule decides it"]),
        ({"policy": FP8}, ["PA505: a policy without fp8"]),
        ({"policy": FP8, "graph": UNKNOWN}, ["PA504 a: a rule decides it", "PA505: a policy without fp8"]),
        ({"verification": Verification(True, (), noise=1.0)}, ["make the model repeat itself and stay finite"]),
        ({"verification": Verification(True, ())}, ["precision-audit 'my model.py' --policy fp16 --input SHAPE"]),
        ({"verification": Verification(True, (), noise=1.0, notes=("not run: a",))}, ["mend what the model itself"]),
        (
            {"verification": replace(PASSED, steps=Steps((Step(math.nan, 0, 0, 0, "", 0),)))},
            ["mend the loss, or make_optimizer's learning rate"],
        ),
    ],
)  # fmt: skip
def test_missing_evidence_is_given_by_its_own_step(options: dict[str, Any], steps: list[str]) -> None:
    verdict, reasons = _judge(**options)
    assert verdict == "NOT ENOUGH EVIDENCE"
    found = _steps(verdict, reasons, ODD, UNSWAPPED)
    assert [text.startswith(begin) for text, begin in zip(found, steps, strict=True)] == [True] * len(steps)


def test_a_finding_that_was_left_out_leaves_a_command() -> None:
    _, reasons = _judge(policy=FP8)
    assert _steps("NOT ENOUGH EVIDENCE", reasons) == ("precision-audit 'my model.py' --policy fp16 -v",)
