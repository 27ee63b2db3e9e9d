"""Which findings a run is asked for: `--select`, `--ignore`, `--min-basis`.

Takes a finished report and the settings; gives the report with those findings, judged again, and with the number of
those left out in its summary. The plan is never changed by it: what protects an op stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from precision_audit.cli.config import Settings
from precision_audit.records import SEVERITIES, Finding, Policy, Report

_BASES = ("assumed", "observed", "proved")  # weakest first


def selected(report: Report, policy: Policy, settings: Settings, made_up: str, options: str) -> Report:
    """`made_up` and `options` as `verdict.judge` and `verdict.next_steps` take them."""
    left = tuple(kept(report.findings, settings))
    weak = sum(_is_weak(each, settings) for each in report.findings)
    if len(left) == len(report.findings):
        return report
    from precision_audit import backends
    from precision_audit.report import verdict

    judged, reasons = verdict.judge(left, report.graph, report.plan, report.verification, policy, made_up=made_up)
    said = {f"--min-basis {settings.min_basis}": weak, _chosen(settings): len(report.findings) - len(left) - weak}
    left_out = ", ".join(f"{number} left out by {option}" for option, number in said.items() if number)
    summary = verdict.summary(judged, reasons, left, report.plan, policy)
    steps = verdict.next_steps(
        judged,
        reasons,
        left,
        model=report.meta.model,
        policy=policy.name,
        failed=report.verification.first_parting if report.verification else "",
        options=options,
        elsewhere=bool(backends.stand_ins(report.plan)),
    )
    return replace(report, findings=left, verdict=judged, summary=f"{summary}   {left_out}", next_steps=steps)


def kept(findings: Iterable[Finding], settings: Settings) -> Iterator[Finding]:
    """Those that the settings ask for."""
    for finding in findings:
        wanted = finding.rule.startswith(settings.select or "PA") and not finding.rule.startswith(
            settings.ignore or "\0"
        )
        if wanted and not _is_weak(finding, settings):
            yield finding


def fails(findings: Iterable[Finding], settings: Settings) -> bool:
    """Whether an open finding is at or above `--fail-on`."""
    if settings.fail_on not in SEVERITIES:
        return False
    bad = SEVERITIES[: SEVERITIES.index(settings.fail_on) + 1]
    return any(finding.severity in bad and finding.open for finding in findings)


def _is_weak(finding: Finding, settings: Settings) -> bool:
    return _BASES.index(finding.evidence.basis.lower()) < _BASES.index(settings.min_basis)


def _chosen(settings: Settings) -> str:
    names = [f"--{name}" for name in ("select", "ignore") if getattr(settings, name)]
    return " and ".join(names)
