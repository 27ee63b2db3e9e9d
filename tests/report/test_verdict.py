"""The verdict's rules, one by one, and their order."""

from __future__ import annotations

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
    Swap,
    Verification,
)
from precision_audit.report.verdict import judge, next_steps, summary

GRAPH = Graph((), (), "inference")
PLAN = Plan("p", "inference", "fp32", "bf16", (), ())
POLICY = Policy("p", "p.yaml", "", "inference", "fp32", "bf16", ())
FP8 = Policy("p", "p.yaml", "", "training", "fp32", "bf16", (Rule("r", "p.yaml:1", "fp8-eligible", backend="torchao"),))
SWAP = Swap("fc1/linear#0", "fc1", "torchao", "rowwise", 64, 64, 64)
REFUSAL = Refusal("fc2/linear#0", "fc2", "torchao", "N=10 is not a multiple of 16")


def _finding(severity: Severity, resolved: bool = False) -> Finding:
    return Finding("PA101", severity, "fc/linear#0", "fc", "text", Evidence("PROVED", ""), None, "mend it", resolved)


def _compared(name: str, passed: bool) -> Comparison:
    return Comparison(name, 0.5, 0.5, 6.0, 0.9, 0, 0, None, None, 0.1, passed)


PASSED = Verification(True, (_compared("output", True),))
EMPTY = replace(_compared("output", True), compared=False)


def _plan(*swaps: Swap, refusals: tuple[Refusal, ...] = ()) -> Plan:
    return Plan("p", "training", "fp32", "bf16", (), (), swaps=swaps, refusals=refusals)


def _judge(**options: Any) -> tuple[str, tuple[str, ...]]:
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
        ({"findings": (_finding("error"),), "verification": None}, "NOT READY", "unresolved PA101"),
    ],
)  # fmt: skip
def test_rules(options: dict[str, Any], verdict: str, reason: str) -> None:
    found, reasons = _judge(**options)
    assert found == verdict
    assert reasons[0].startswith(reason) if reason else reasons == ()


def test_summary_counts_what_is_left_and_says_why() -> None:
    findings = (_finding("warning"), _finding("warning"), _finding("error", True))
    text = summary("READY WITH CHANGES", (), findings, _plan(SWAP, refusals=(REFUSAL,)), FP8)
    assert text == "0 errors, 2 warnings, 0 notes (1 more resolved by the plan)   Float8Linear: 1 of 2 linears"
    assert summary("NOT READY", ("a", "b", "c"), (), PLAN, POLICY) == "0 errors, 0 warnings, 0 notes   a   b"


@pytest.mark.parametrize(
    ("verdict", "options", "first"),
    [
        ("READY", {}, "precision-audit convert 'my model.py' --policy fp16 -o out/"),
        ("READY WITH CHANGES", {}, "precision-audit convert 'my model.py' --policy fp16 -o out/"),
        ("NOT READY", {"failed": "fc/linear#0"}, "precision-audit 'my model.py' --policy fp16 -v"),
        ("NOT ENOUGH EVIDENCE", {"made_up": "inputs"}, "precision-audit 'my model.py' --policy fp16 --input SHAPE"),
        (
            "NOT ENOUGH EVIDENCE",
            {"reasons": ("nothing was compared: why",)},
            "precision-audit 'my model.py' --policy fp16 --input SHAPE",
        ),
    ],
)
def test_the_first_step_is_a_command(verdict: Any, options: dict[str, Any], first: str) -> None:
    reasons = options.pop("reasons", ())
    steps = next_steps(verdict, reasons, (_finding("error"),), model="my model.py", policy="fp16", **options)
    assert steps[0].startswith(first)
    assert steps[-1] == "PA101 fc: mend it"
    assert any("fc/linear#0" in step for step in steps) == ("failed" in options)
