"""Findings as the reports show them: what is open first, alike ones as one, what the plan resolved in a line each.

Takes a `Report`, or a `Lint`; gives `Entry` records in the order in which they are shown. Unless verbose, findings with
the same text are one entry whatever their op, and so are those of one line of the user's that differ by numbers and the
op's name only (repeated layers, the sums of one line): then the one with the largest number stands for all, and is said
to. Never drops anything silently: what `within` leaves out is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from precision_audit.records import Finding, Lint, Report
from precision_audit.report import phrases

State = Literal["open", "resolved", "suppressed"]

_NAMES_WIDTH = 34
_RANK = {"error": 0, "warning": 1, "note": 2}
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Entry:
    """One finding, or several that are alike. `text` begins with what it is about."""

    location: str
    rule: str
    severity: str
    basis: str
    text: str
    fix: str
    state: State = "open"
    code: str = ""  # the line as the user wrote it
    evidence: str = ""
    verdict: str = ""  # what became of it: "kept fp32 by the plan"; "" where it is open
    count: int = 1


def entries(report: Report | Lint, state: State, verbose: bool = False) -> list[Entry]:
    """The findings of one state, worst first, then by place."""
    labels = _labels(report)
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in sorted((one for one in report.findings if _state(one) == state), key=_place):
        text = _without_name(each, labels)
        same = (each.rule, each.severity, each.evidence.basis, text, each.remedy)
        key = same if not verbose else (*same, each.op, each.module, each.source)
        groups.setdefault(key, []).append(each)
    found = [(members, _entry(members, labels, report, verbose)) for members in groups.values()]
    return [entry for _, entry in found] if verbose else _merged(found)


def by_place(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Worst first, then by file and line: what is said of one line stands together, whichever rules say it."""
    return tuple(sorted(findings, key=lambda each: (*_place(each), each.message)))


def within(found: Sequence[Entry], lines: int, detailed: bool = True) -> tuple[list[Entry], str]:
    """As many entries as fit into `lines`, with a line for each detail if `detailed`, the first one always; and what is
    left out, in words."""
    shown: list[Entry] = []
    used = 0
    for each in found:
        used += 1 + detailed * sum(map(bool, (each.code, each.evidence, each.fix)))
        if shown and used > lines:
            break
        shown.append(each)
    return shown, counted(found[len(shown) :])


def counted(found: Sequence[Entry]) -> str:
    """`1 error, 12 warnings`; "" for none."""
    counts: Counter[str] = Counter()
    for each in found:
        counts[each.severity] += each.count
    return ", ".join(phrases.count(counts[word], word) for word in _RANK if counts[word])


def _state(finding: Finding) -> State:
    if finding.suppression is not None:
        return "suppressed"
    return "resolved" if finding.resolved else "open"


def _labels(report: Report | Lint) -> dict[str, str]:
    if isinstance(report, Lint):
        return {}
    from precision_audit.report import tables

    return tables.op_labels(report)


def _place(finding: Finding) -> tuple[object, ...]:
    source = finding.source
    where = (phrases.path(source.file), source.line) if source else ("", 0)
    return (_RANK[finding.severity], *where, finding.rule, _counting(finding.op))


def _counting(key: str) -> tuple[tuple[str, int], ...]:
    """Sorts layers.2 before layers.10."""
    return tuple(("", int(part)) if part.isdigit() else (part, 0) for part in re.split(r"(\d+)", key))


def _name(finding: Finding, labels: dict[str, str]) -> str:
    return finding.module or labels.get(finding.op, finding.op)


def _without_name(finding: Finding, labels: dict[str, str]) -> str:
    """What it says, and whose word stands against its remedy."""
    against = f"; unresolved: {finding.overridden}" if finding.overridden else ""
    return finding.message.removeprefix(f"{_name(finding, labels)}: ") + against


def _entry(members: Sequence[Finding], labels: dict[str, str], report: Report | Lint, verbose: bool) -> Entry:
    first = max(members, key=_size)
    name = phrases.names([_name(each, labels) for each in members if _name(each, labels)], _NAMES_WIDTH)
    text = f"{name}: {_without_name(first, labels)}" if name else _without_name(first, labels)
    places = {phrases.location(each.source, "") for each in members}
    otherwise = f"module {name}" if first.module else f"op {name}" if name else "model"
    is_lint = isinstance(report, Lint)
    detailed = verbose or first.severity != "note" or is_lint
    return Entry(
        location=phrases.location(first.source, otherwise) + (f" (+{len(places) - 1})" if len(places) > 1 else ""),
        rule=first.rule,
        severity=first.severity,
        basis=first.evidence.basis,
        text=text,
        fix=first.remedy,
        state=_state(first),
        code=first.source.text.strip() if detailed and (first.op or is_lint) and first.source else "",
        evidence=_evidence(first, verbose) if detailed else "",
        verdict=_verdict(first, report),
        count=len(members),
    )


def _verdict(finding: Finding, report: Report | Lint) -> str:
    if finding.suppression is not None:
        where = f"{phrases.path(finding.suppression.file)}:{finding.suppression.line}"
        return f"suppressed at {where}: {finding.suppression.reason or 'no reason given'}"
    return f"kept {report.plan.high} by the plan" if finding.resolved and isinstance(report, Report) else ""


def _evidence(finding: Finding, verbose: bool) -> str:
    """`amax 1.764e+05, limit 65504, batch 0, share 1.56 %`; what was looked at, where there are no numbers."""
    numbers = ", ".join(
        f"{name.replace('_', ' ')} {phrases.share(value) if name == 'share' else f'{value:.5g}'}"
        for name, value in finding.evidence.numbers
    )
    return "; ".join(filter(None, (numbers, finding.evidence.text))) if verbose else numbers


def _size(finding: Finding) -> float:
    """What makes one of several alike findings stand for all: its first number."""
    return abs(finding.evidence.numbers[0][1]) if finding.evidence.numbers else 0.0


def _merged(found: Sequence[tuple[Sequence[Finding], Entry]]) -> list[Entry]:
    """Entries of one line that differ only by their numbers and the name of the op, as the largest of them."""
    alike: dict[tuple[str, ...], list[tuple[Sequence[Finding], Entry]]] = {}
    for members, entry in found:
        text = _NUMBER.sub("#", _nameless(entry.text.partition(": ")[2] or entry.text, members[0]))
        place = entry.location if members[0].source else _NUMBER.sub("#", entry.location)
        key = (entry.rule, entry.severity, entry.basis, place, text, _NUMBER.sub("#", entry.fix))
        alike.setdefault(key, []).append((members, entry))
    shown = []
    for group in alike.values():
        _, entry = max(group, key=lambda each: max(map(_size, each[0])))
        total = sum(each.count for _, each in group)
        if len(group) > 1:
            entry = replace(entry, text=f"{entry.text} (and {total - entry.count} like it)", count=total)
        shown.append(entry)
    return shown


def _nameless(text: str, finding: Finding) -> str:
    """The text without the op's own name, which the beginning of an entry tells."""
    name = finding.op.rpartition("/")[2].partition("#")[0]
    return re.sub(rf"\b{re.escape(name)}\b", "#", text) if name else text
