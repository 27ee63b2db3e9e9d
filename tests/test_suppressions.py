"""Suppression comments: which are read, which line they speak of, and what becomes of the finding."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import precision_audit as pa
from precision_audit import suppressions
from precision_audit.records import Evidence, Finding, Graph, Op, Report, Source, Suppression
from precision_audit.report import as_json

_NAMES = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a model file and import it as the command line does."""

    def made(body: str) -> ModuleType:
        name = f"suppressed_{next(_NAMES)}"
        path = tmp_path / f"{name}.py"
        path.write_text("import torch\nfrom torch import nn\n\n" + textwrap.dedent(body), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return made


def graph(file: str, *lines: int) -> Graph:
    ops = (
        Op(f"/relu#{n}", "", "relu", "pointwise", "", "", (), (), source=Source(file, line, "forward", ""))
        for n, line in enumerate(lines)
    )
    return Graph(tuple(ops), (), "inference")


@pytest.mark.parametrize(
    ("comment", "codes", "reason"),
    [
        ("# precision-audit: ignore[PA203] a reason", ("PA203",), "a reason"),
        ("#precision-audit:ignore[PA203]", ("PA203",), ""),
        ("# precision-audit: ignore[PA2, pa104] both", ("PA2", "PA104"), "both"),
        ("# noqa: E501  # precision-audit: ignore[PA203]: ids stay small  # more", ("PA203",), "ids stay small"),
        ("# precision_audit: ignore[PA203] underscore", ("PA203",), "underscore"),
        ("# precision-audit: ignore everything", (), "everything"),
        ("# precision-audit: ignore[]", (), ""),
    ],
)
def test_what_a_comment_says(tmp_path: Path, comment: str, codes: tuple[str, ...], reason: str) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"x = 1\ny = x  {comment}\n")
    (found,) = suppressions.read(graph(str(file), 2))
    assert (found.line, found.target, found.codes, found.reason) == (2, 2, codes, reason)


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("ignore[PA101] large ignore[PA203] small", [(("PA101",), "large"), (("PA203",), "small")]),
        ("ignore[PA101] a; ignore[PA2, PA3]", [(("PA101",), "a"), (("PA2", "PA3"), "")]),
        ("ignore[PA101] we ignore that", [(("PA101",), "we ignore that")]),
        ("ignore[PA101] a  # precision-audit: ignore[PA203] b", [(("PA101",), "a"), (("PA203",), "b")]),
    ],
)
def test_a_comment_may_say_two_things(tmp_path: Path, comment: str, said: list[object]) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"x = 1\ny = x  # precision-audit: {comment}\n")
    found = suppressions.read(graph(str(file), 2))
    assert [(each.codes, each.reason) for each in found] == said
    assert {(each.line, each.target) for each in found} == {(2, 2)}


STATEMENTS = """\
y = (
    a
    + b
)  # precision-audit: ignore[PA1] whole
z = call(
    a,  # precision-audit: ignore[PA2] a line within
    b,
)
for i in range(
    9
):  # precision-audit: ignore[PA3] the call in the header
    w = [
        call(
            i
        ),  # precision-audit: ignore[PA4] the call
        2,
    ]
"""


def test_on_the_closing_line_a_comment_speaks_of_the_whole_statement(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(STATEMENTS)
    found = suppressions.read(graph(str(file), 1))
    spoken = {each.codes[0]: [line for line in range(1, 20) if each.speaks_of(line)] for each in found}
    assert spoken == {"PA1": [1, 2, 3, 4], "PA2": [6], "PA3": [9, 10, 11], "PA4": [13, 14, 15]}


@pytest.mark.parametrize(
    "text",
    [
        "x = '# precision-audit: ignore[PA203] in a string'\n",
        "# precision-audit is ignored here\n",
        "def broken(:  # precision-audit: ignore[PA203]\n",
        "",
    ],
)
def test_what_is_no_suppression(tmp_path: Path, text: str) -> None:
    file = tmp_path / "net.py"
    file.write_text(text)
    assert suppressions.read(graph(str(file), 1)) == ()
    assert suppressions.read(graph(str(tmp_path / "gone.py"), 1)) == ()


def test_a_comment_alone_speaks_of_the_next_line_of_code(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "# precision-audit: ignore[PA1] why\n# and more of why\n\ny = (\n    2  # precision-audit: ignore[PA2]\n)\n"
    )
    assert [(each.line, each.target) for each in suppressions.read(graph(str(file), 4))] == [(1, 4), (5, 5)]


def test_only_code_that_the_audit_has_seen_is_judged(tmp_path: Path) -> None:
    mark = "# precision-audit: ignore[PA1]"
    file = tmp_path / "net.py"
    file.write_text(
        f"class Seen:\n    scale = 2  {mark}\n\n    def forward(self):\n        return 1\n\n\n"
        f"class Other:\n    def forward(self):\n        return 2  {mark}\n\n\nconstant = 3  {mark}\n"
    )
    assert [each.line for each in suppressions.read(graph(str(file), 5))] == [2, 13]


def test_a_finding_on_another_line_or_of_another_rule_stays() -> None:
    def finding(rule: str, line: int) -> Finding:
        return Finding(rule, "error", "", "", "", Evidence("PROVED", ""), Source("/a/net.py", line, "", ""))

    comment = Suppression("/a/net.py", 6, 7, ("PA10", "PA203"), "")
    found = [finding("PA101", 7), finding("PA109", 7), finding("PA112", 7), finding("PA101", 6)]
    marked = suppressions.suppressed(found, [comment])
    assert [each.suppression == comment for each in marked] == [True, True, False, False]
    assert [each.open for each in marked] == [False, False, True, True]
    (nowhere,) = suppressions.suppressed([Finding("PA101", "error", "", "", "", Evidence("PROVED", ""))], [comment])
    assert nowhere.open


CUSTOM = """
@torch.library.custom_op("{name}::halve", mutates_args=(), schema="(Tensor x) -> Tensor")
def halve(x):
    return x / 2


halve.register_fake(torch.empty_like)


class Net(nn.Module):
    def forward(self, x):
        return halve(torch.relu(x)){comment}


class Unused(nn.Module):
    def forward(self, x):
        return x + 1  # precision-audit: ignore[PA504] of another model
"""


def audit(write: Any, comment: str, **options: Any) -> Report:
    source = CUSTOM.replace("{comment}", comment).replace("{name}", f"suppressed_{next(_NAMES)}")
    return pa.audit(write(source).Net(), (torch.ones(2, 8),), **options)


def test_a_suppressed_finding_is_out_of_the_counts_and_in_the_report(write: Any) -> None:
    plain = audit(write, "")
    assert [(each.rule, each.open) for each in plain.findings] == [("PA504", True)]
    assert "1 warning" in plain.summary
    report = audit(write, "  # precision-audit: ignore[PA50] exact in any format")
    (found,) = report.findings
    assert found.rule == "PA504" and not found.open and found.suppression is not None
    assert found.suppression.reason == "exact in any format"
    assert "0 warnings, 0 notes (1 suppressed)" in report.summary
    written = as_json.read(as_json.render(report)).findings[0].suppression
    assert written is not None and written.reason == "exact in any format"
    assert "suppressed at" in pa.report.render(report, "full", verbose=True)
    assert "PA504 " not in pa.report.render(report, "concise")
    assert found.fingerprint  # a comment on the line changes no name


SQUARE = """
class Net(nn.Module):
    def forward(self, x):
        y = x * x{comment}
        return y / 1000.0
"""


@pytest.mark.parametrize("comment", ["", "  # precision-audit: ignore[PA101] known"])
def test_the_plan_protects_the_op_with_and_without_a_comment(write: Any, comment: str) -> None:
    """300 squared is 90,000 and fp16 ends at 65,504: a comment silences the report, not the remedy."""
    model = write(SQUARE.replace("{comment}", comment)).Net()
    report = pa.audit(model, (torch.tensor([300.0, 2.0]),), policy="fp16-inference")
    (found,) = [each for each in report.findings if each.rule == "PA101"]
    assert found.resolved and (found.suppression is not None) == bool(comment)
    assert dict(report.plan.formats)["/mul#0"] == "fp32"
    assert ("1 suppressed" in report.summary) == bool(comment)
    assert ("1 more resolved by the plan" in report.summary) != bool(comment)


STREAM = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x):
        stream = self.project(x) + 30.0  # precision-audit: ignore[PA210] measured and found small
        return self.norm(stream)
"""


def test_what_is_found_last_can_be_suppressed_too(write: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: alone\nextends: bf16-inference\nhazards: {PA204: off, PA205: off, PA207: off}\n")
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    report = pa.audit(write(STREAM).Net(), (x,), policy=file)
    assert [each.suppression is not None for each in report.findings if each.rule == "PA210"] == [True]
    assert not [each for each in report.findings if each.rule == "PA506"]


SPREAD = """
class Net(nn.Module):
    def forward(self, x):
        y = torch.mul(
            x,
            x,
        )  # precision-audit: ignore[PA101] known ignore[PA203] nothing of the kind
        return y / 1000.0
"""


def test_both_are_honoured_at_the_end_of_a_call(write: Any) -> None:
    """The op's line is the first of the call."""
    report = pa.audit(write(SPREAD).Net(), (torch.tensor([300.0, 2.0]),), policy="fp16-inference")
    (found,) = [each for each in report.findings if each.rule == "PA101"]
    assert found.suppression is not None and found.suppression.reason == "known"
    (unused,) = [each for each in report.findings if each.rule == "PA506"]
    assert "no PA203 on this line" in unused.message


@pytest.mark.parametrize(
    ("comment", "severity", "said"),
    [
        ("ignore[PA504, PA505]", "note", "nothing to suppress: no PA505 on this line"),
        ("ignore[PA504, PA999]", "warning", "no rule begins with PA999; did you mean PA"),
        ("ignore[PA504, XX]", "warning", "no rule begins with XX"),
        ("ignore", "warning", "the suppression names no rule"),
        ("ignore[PA504]", "", ""),
        ("ignore[PA5]", "", ""),
        ("ignore[PA]", "", ""),
    ],
)
def test_a_suppression_of_nothing_is_a_finding(write: Any, comment: str, severity: str, said: str) -> None:
    report = audit(write, f"  # precision-audit: {comment}")
    told = [each for each in report.findings if each.rule == "PA506"]
    assert len(told) == bool(said)
    for each in told:
        assert each.severity == severity and each.message.startswith(said)
        assert each.source is not None and each.source.text.startswith("return halve(torch.relu(x))  # precision-audit")
        assert each.open


def test_the_line_that_does_have_the_finding_is_named(write: Any) -> None:
    source = CUSTOM.replace("{name}", f"suppressed_{next(_NAMES)}").replace(
        "return halve(torch.relu(x)){comment}",
        "y = torch.relu(x)  # precision-audit: ignore[PA504]\n        return halve(y)",
    )
    report = pa.audit(write(source).Net(), (torch.ones(2, 8),))
    (told,) = [each for each in report.findings if each.rule == "PA506"]
    assert told.source is not None
    assert told.message.endswith(f"; line {told.source.line + 1} has one")


def test_a_rule_that_could_not_speak_makes_no_suppression_unused(write: Any, tmp_path: Path) -> None:
    """Off in the policy, no low format, no inputs: nobody knows what the rule would have said."""
    off = tmp_path / "mine.yaml"
    off.write_text(
        "name: mine\nextends: bf16-inference\nrules:\n  - {name: r, op: relu, class: follow}\nhazards: {PA501: off}\n"
    )
    for comment, options in (
        ("ignore[PA504, PA501]", {"policy": off}),
        ("ignore[PA504, PA101]", {"policy": "fp32"}),
    ):
        report = audit(write, f"  # precision-audit: {comment}", **options)
        assert [each for each in report.findings if "nothing to suppress: no PA5" in each.message] == [
            each for each in report.findings if each.rule == "PA506" and "PA504" in each.message
        ]
        assert not [each for each in report.findings if "PA101" in each.message or "PA501" in each.message]
