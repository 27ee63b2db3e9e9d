"""The pull-request comment where it differs from the golden one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_audit.records import Suppression
from precision_audit.report import as_markdown
from tests.report import sample


def test_about_fifteen_lines_are_open() -> None:
    text = as_markdown.render(sample.report())
    folded = text[text.index("<details>") : text.index("</details>")]
    is_open = [line for line in text.replace(folded, "").splitlines() if line]
    assert len(is_open) <= 15
    assert "| log\\_softmax | keep-fp32 | fp32 |" in folded


@pytest.mark.parametrize(
    ("message", "escaped"),
    [
        ("a | b", "a &#124; b"),
        ("<script>", "&lt;script>"),
        ("running_mean *and* `x`", "running\\_mean \\*and\\* \\`x\\`"),
        ("two\nlines", "two lines"),
        ("[link](x)", "\\[link\\](x)"),
    ],
)
def test_text_cannot_change_the_layout(message: str, escaped: str) -> None:
    finding = replace(sample.findings()[0], message=message)
    assert f"fc2: {escaped}\n" in as_markdown.render(replace(sample.report(), findings=(finding,)))


def test_a_command_with_backticks_stays_one_code_span() -> None:
    report = sample.report()
    text = as_markdown.render(replace(report, meta=replace(report.meta, command="precision-audit a`b.py")))
    assert "Reproduce: `` precision-audit a`b.py ``" in text


def test_a_failed_verification_says_where() -> None:
    output = replace(sample.verification().outputs[0], passed=False, relative_l2=1.0)
    failed = replace(sample.verification(), passed=False, outputs=(output,), first_parting="fc2/linear#0")
    text = as_markdown.render(replace(sample.report(), verification=failed))
    assert "| output, relative L2 | 1.0e0 | 2.7e-3 | 1e-2 | FAIL |" in text
    assert "> first op at which both part: fc2/linear\\#0 (examples/01\\_mnist\\_cnn.py:34)" in text


def test_many_findings_are_cut_and_counted() -> None:
    note = sample.findings()[0]
    found = tuple(replace(note, message=f"problem {'i' * i}") for i in range(1, 21))
    report = replace(sample.report(), findings=found)
    assert "- and 12 notes more\n" in as_markdown.render(report)
    assert "more\n" not in as_markdown.render(report, verbose=True)


def test_what_is_resolved_or_suppressed_is_folded_away() -> None:
    note, warning = sample.findings()
    comment = Suppression("net.py", 7, 8, ("PA4",), "known since May")
    found = (replace(note, resolved=True), replace(warning, suppression=comment))
    text = as_markdown.render(replace(sample.report(), findings=found))
    folded = text[text.index("<details><summary>2 findings resolved or suppressed") : text.index("</details>")]
    assert "**PA401** kept fp32 by the plan: fc2: stays bf16" in folded
    assert "**PA402** suppressed at net.py:7: known since May: fc1: backward needs" in folded
    assert "PA40" not in text.replace(folded, "")
