"""`--check-plan` and `--apply-plan`: whose figures a report has, and whether a committed plan still holds.

Takes the report that was made with the plan where it fits (without it where it does not), the plans and the settings;
gives the report saying whose figures it has, and what no longer holds. Decides nothing: whether a plan fits is
`plan/check.py`'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from precision_audit.cli import terminal
from precision_audit.cli.config import Settings
from precision_audit.records import Hardware, Plan, Policy, Report


def checked(
    report: Report, plans: Mapping[str, Plan | None], policy: Policy, settings: Settings
) -> tuple[Report, list[str]]:
    """The report, and what no longer holds of the plan to check, which is said on stderr too."""
    problems = _problems(plans["check"], plans["apply"], report, policy, settings)
    if problems:
        return _not_holding(report, problems, settings), problems
    used = settings.apply_plan or settings.check_plan
    return (_noted(report, f"costs, findings and figures are those of {used}") if used else report), problems


def _problems(plan: Plan | None, applied: Plan | None, report: Report, policy: Policy, settings: Settings) -> list[str]:
    if plan is None:
        return []
    from precision_audit import hardware
    from precision_audit.hardware.local import resolved
    from precision_audit.plan import file as plan_file

    row = resolved(hardware.device(report.meta.device))
    problems = plan_file.check(plan, report.graph, policy, row)
    notes = [] if problems else ["the plan holds", plan_file.cheaper(plan, _fresh(report, applied, policy, row))]
    for line in [*problems, *filter(None, notes)]:
        terminal.say(f"{settings.check_plan}: {line}")
    return problems


def _fresh(report: Report, applied: Plan | None, policy: Policy, row: Hardware) -> Plan:
    """The plan that would be made today, or the one that was applied beside the one to check."""
    if applied is not None:
        return report.plan
    from precision_audit.planning import planned

    return planned(report.graph, policy, row, facts=report.facts).plan


def _not_holding(report: Report, problems: Sequence[str], settings: Settings) -> Report:
    """The report of a model whose committed plan fails says so wherever it is read."""
    plan = settings.check_plan
    whose = f"costs, findings and figures are those of {settings.apply_plan or 'a plan made anew'}, not of {plan}"
    said = (*(f"{plan} no longer holds: {problem}" for problem in problems), whose)
    summary = f"{report.summary}   {plan} no longer holds"
    return replace(_noted(report, *said), verdict="NOT READY", summary=summary, next_steps=())


def _noted(report: Report, *notes: str) -> Report:
    return replace(report, meta=replace(report.meta, notes=(*report.meta.notes, *notes)))
