"""The report in lines that tools read: one per finding, `file:line: RULE severity [BASIS] text`, then the verdict.

Takes a `Report` or a `Lint`; gives no table and no remedy. Findings are never grouped, so that each place has its line.
What the plan resolved comes last, with `resolved` where the severity stands, so that no tool takes it for an error.
"""

from __future__ import annotations

from precision_audit.records import Lint, Report
from precision_audit.report import findings, phrases, tables

SUFFIXES = (".log",)


def render(report: Report | Lint, *, verbose: bool = False, color: bool = False) -> str:
    """One line per finding and one for the verdict; `verbose` and `color` change nothing here."""
    lines = [
        f"{each.location}: {each.rule} {each.severity} [{each.basis}] {each.text}"
        for each in findings.entries(report, "open", verbose=True)
    ]
    if isinstance(report, Lint):
        lines.append(f"{phrases.scripts(report)}   {report.summary}")
        return "\n".join(lines) + "\n"
    lines.extend(
        f"{each.location}: {each.rule} resolved [{each.basis}] {each.text}; {each.verdict}"
        for each in findings.entries(report, "resolved", verbose=True)
    )
    lines.extend(f"{row[0]}: {row[1]} is above the limit {row[3]}" for row in _failures(report))
    lines.append(f"{phrases.path(report.meta.model)}: {report.verdict}   {report.summary}")
    return "\n".join(lines) + "\n"


def _failures(report: Report) -> list[tuple[str, str, str, str, str]]:
    return [row for row in tables.verification_rows(report, verbose=True) if row[4] == "FAIL"]
