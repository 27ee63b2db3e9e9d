"""Small models that fail in training in a low format, and harmless neighbours, written without a look at the rules.

Each was run with torch alone: `EXPECT` says under which conversion it fails, how, and on which line (`line` is a piece
of it). A failing one must be named on that line by a finding that is more than a note; a harmless one must have none.
`ELSEWHERE`: named, but on another line, and why. `TRUE`: harmless as the author meant it, and the finding is true.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import precision_audit as pa
from precision_audit.records import Finding, Report

POLICIES = {
    "fp16": "fp16-training",
    "bf16": "bf16-training",
    "autocast-fp16": "amp-cpu-fp16",
    "autocast-bf16": "amp-cpu-bf16",
}
NAMES = tuple(sorted(e.name for e in pkgutil.iter_modules([str(Path(__file__).parent)]) if e.name[:1] in "bg"))

# case → rule that names it, and where
ELSEWHERE = {
    "b07": ("PA602", "the op with the largest gradient, which no loss scale serves, is the einsum behind the division"),
    "b13": ("PA601", "a loss scale has no line; the smallest gradient is that of the convolution"),
    "b14": ("PA601", "the gradient is smallest in front of the branch that layer scale multiplies"),
    "b15": ("PA601", "a loss scale has no line; the smallest gradient is an expert's"),
    "b30": ("PA604", "the optimizer is the user's own class; the line is where it is made"),
    "b34": ("PA605", "the momentum stands where the module is made, the op where it is called"),
    "b43": ("PA309", "the line in the function's forward that overflows"),
    "b47": ("PA602", "the op with the largest gradient is the layer before the division"),
}
NOTED = {"b22": "PA603"}  # a note: decay alone is lost, of rows that nothing else moves
TRUE = {
    "g10": "PA601",  # its author scales the loss, which is what the finding asks for
    "g34": "PA208",  # the second output differs from fp32's, though it is not trained
    "g30": "PA103",  # the overflow is real; only where it is discarded nothing comes of it
}


def short(name: str) -> str:
    return name.partition("_")[0]


@cache
def audited(name: str) -> tuple[ModuleType, Report]:
    case = importlib.import_module(f"{__package__}.{name}")
    options = {
        option: getattr(case, attribute)
        for attribute, option in (("loss", "loss"), ("make_optimizer", "optimizer"))
        if hasattr(case, attribute)
    }
    policy = POLICIES[case.EXPECT["naive"]]
    return case, pa.audit(case.build_model(), case.example_inputs(), policy=policy, device="cpu-amx", **options)


def alarms(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity != "note"]


def test_the_tables_name_cases_that_there_are() -> None:
    assert len(NAMES) == 82
    assert set(ELSEWHERE) | set(NOTED) | set(TRUE) <= {short(name) for name in NAMES}


@pytest.mark.parametrize("name", [name for name in NAMES if name[0] == "b"])
def test_what_fails_is_named_on_its_line(name: str) -> None:
    case, report = audited(name)
    told = alarms(report)
    seen = [f"{finding.rule} {finding.op}" for finding in told]
    if short(name) in NOTED:
        assert NOTED[short(name)] in {finding.rule for finding in report.findings}
        return
    if short(name) in ELSEWHERE:
        assert ELSEWHERE[short(name)][0] in {finding.rule for finding in told}, seen
        return
    lines = Path(str(case.__file__)).read_text(encoding="utf-8").splitlines()
    guilty = {number for number, line in enumerate(lines, 1) if case.EXPECT["line"] in line}
    at = {finding.source.line for finding in told if finding.source and finding.source.file == case.__file__}
    spread = {line + more for line in at for more in range(-3, 4)}  # a call over several lines has one line here
    assert guilty & spread, (seen, sorted(at), sorted(guilty))


@pytest.mark.parametrize("name", [name for name in NAMES if name[0] == "g"])
def test_what_is_harmless_is_not_condemned(name: str) -> None:
    _, report = audited(name)
    found = {finding.rule for finding in alarms(report)}
    assert found == ({TRUE[short(name)]} if short(name) in TRUE else set())
