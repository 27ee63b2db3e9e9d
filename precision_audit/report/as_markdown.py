"""The report as a comment on a pull request: about fifteen lines, the plan folded away.

Takes a `Report`, or a `Lint`; gives GitHub's Markdown: verdict, errors against limits, linears eligible, swapped and
refused, findings with their lines, the plan in a `<details>` block, digests, and the command that reproduces it. Text
from the model (names, messages) is escaped, so that no name can change the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from precision_audit.records import Lint, Report
from precision_audit.report import costs, findings, layers, phrases, tables

SUFFIXES = (".md", ".markdown")

_FINDINGS_SHOWN = 8
_NAMES_WIDTH = 80
_MARKS = {"READY": "✅", "READY WITH CHANGES": "⚠️", "NOT READY": "❌", "NOT ENOUGH EVIDENCE": "❔"}
_ESCAPES = str.maketrans({**{mark: f"\\{mark}" for mark in "\\`*_[]~#"}, "<": "&lt;", "|": "&#124;", "\n": " "})
_DIGEST_SHOWN = len("sha256:") + 12


def render(report: Report | Lint, *, verbose: bool = False, color: bool = False) -> str:
    """The comment; `verbose` lists every op and finding, `color` changes nothing here."""
    if isinstance(report, Lint):
        blocks = [list(_of_lint(report)), list(_findings(report, verbose)), list(_done(report, verbose))]
        return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
    blocks = [
        list(_heading(report)),
        list(_searched(report, verbose)),
        list(_verification(report, verbose)),
        list(_training(report)),
        list(_linears(report)),
        list(_costs(report, verbose)),
        list(_findings(report, verbose)),
        list(_done(report, verbose)),
        list(_plan(report, verbose)),
        list(_provenance(report)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _of_lint(report: Lint) -> Iterator[str]:
    yield f"### {_MARKS['NOT READY' if report.findings else 'READY']} precision-audit lint"
    yield f"{_escaped(phrases.scripts(report))} · {_escaped(report.summary)}"
    yield from (f"> {_escaped(note)}" for note in report.notes)


def _heading(report: Report) -> Iterator[str]:
    meta = report.meta
    yield f"### {_MARKS[report.verdict]} precision-audit: {report.verdict}"
    parts = [_code(phrases.path(meta.model)), f"policy {_code(meta.policy)}", _escaped(phrases.device(meta))]
    yield " · ".join(parts + [_escaped(part) for part in report.summary.split("   ")])
    yield from (f"> {_escaped(note)}" for note in meta.notes)


def _verification(report: Report, verbose: bool) -> Iterator[str]:
    if report.verification is None:
        yield "Not verified: the model was not run."
        return
    rows = tables.verification_rows(report, verbose)
    if rows:
        yield from _table(tables.verification_header(report), rows)
    if not report.verification.passed:
        yield ""
        yield from (f"> {_escaped(remark)}" for remark in tables.remarks(report))


def _searched(report: Report, verbose: bool) -> Iterator[str]:
    if report.search is None:
        return
    from precision_audit.report import search

    for line in search.summary(report):
        yield f"{'  ' if line.startswith('  ') else ''}- {_escaped(line.strip())}"
    yield ""
    yield from _table(search.POINTS_HEADER, search.points(report))
    rows, more = search.places(report, verbose)
    if rows:
        yield ""
        yield from _table(search.PLACES_HEADER, rows)
    if more:
        yield f"and {more} more that stay in {report.plan.high}"


def _training(report: Report) -> Iterator[str]:
    if report.training is None:
        return
    from precision_audit.report import training  # needs torch, which a lint does without

    yield f"<details><summary>{_escaped(training.title(report))}</summary>"
    yield ""
    yield from _table(training.header(report), training.rows(report))
    yield ""
    yield from (f"- {_escaped(remark)}" for remark in training.remarks(report))
    if loop := training.loop(report):
        yield from ("", "```python", *loop[1:], "```")
    yield "</details>"


def _costs(report: Report, verbose: bool) -> Iterator[str]:
    """One paragraph; verbose: the dearest modules too."""
    found = [line.strip() for line in costs.lines(report)]
    if found:
        yield _escaped("; ".join(found))
    if verbose and (rows := costs.module_rows(report)):
        yield ""
        yield from _table(costs.module_header(report), rows)


def _linears(report: Report) -> Iterator[str]:
    swaps, refusals = report.plan.swaps, report.plan.refusals
    if not swaps and not refusals:
        return
    swapped = phrases.names([swap.module or swap.op for swap in swaps], _NAMES_WIDTH)
    reasons: dict[str, list[str]] = {}
    for refusal in refusals:
        reasons.setdefault(refusal.reason, []).append(refusal.module or refusal.op)
    refused = "; ".join(f"{phrases.names(members, _NAMES_WIDTH)}: {reason}" for reason, members in reasons.items())
    yield (
        f"Linears: {len(swaps) + len(refusals)} eligible, {len(swaps)} swapped"
        + (f" ({_escaped(swapped)})" if swapped else "")
        + f", {len(refusals)} refused"
        + (f" ({_escaped(refused)})" if refused else "")
    )
    if said := layers.counts(report):
        yield _escaped(said)


def _findings(report: Report | Lint, verbose: bool) -> Iterator[str]:
    found = findings.entries(report, "open", verbose)
    shown = found if verbose else found[:_FINDINGS_SHOWN]
    for each in shown:
        said = f"- {_code(each.location)} **{each.rule}** {each.severity} [{each.basis}] {_escaped(each.text)}"
        said += f"<br>{_code(each.code)}" if each.code else ""
        said += f"<br>*Evidence:* {_escaped(each.evidence)}" if each.evidence else ""
        yield said + (f" *Fix:* {_escaped(each.fix)}" if each.fix else "")
    if len(found) > len(shown):
        yield f"- and {findings.counted(found[len(shown) :])} more"


def _done(report: Report | Lint, verbose: bool) -> Iterator[str]:
    """What the plan resolved and what the user suppressed, folded away."""
    done = [each for state in ("resolved", "suppressed") for each in findings.entries(report, state, verbose)]
    if not done:
        return
    number = sum(each.count for each in done)
    yield f"<details><summary>{phrases.count(number, 'finding')} resolved or suppressed</summary>"
    yield ""
    for each in done:
        yield f"- {_code(each.location)} **{each.rule}** {_escaped(each.verdict)}: {_escaped(each.text)}"
    yield "</details>"


def _plan(report: Report, verbose: bool) -> Iterator[str]:
    rows = tables.op_rows(report, verbose)
    yield f"<details><summary>Plan: {_escaped(tables.format_counts(report.decisions))}</summary>"
    yield ""
    if rows:
        yield from _table(tables.OP_HEADER, rows)
        yield ""
    yield _escaped(tables.casts_line(report))
    yield "</details>"


def _provenance(report: Report) -> Iterator[str]:
    meta = report.meta
    digests = [
        ("weights", meta.weights_digest),
        ("policy", meta.policy_digest),
        ("calibration", meta.calibration_digest),
    ]
    parts = [f"{name} {_code(digest[:_DIGEST_SHOWN])}" for name, digest in digests if digest]
    parts += [f"{name} {version}" for name, version in meta.versions]
    parts += [f"{name} emulated" for name in meta.emulated]
    yield "<sub>" + " · ".join(parts) + "</sub>"
    if meta.command:
        yield f"Reproduce: {_code(meta.command)}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(_escaped(cell) for cell in header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(_escaped(cell) for cell in row) + " |"


def _escaped(text: str) -> str:
    """Plain text in a cell or a line: nothing in it may open a tag, a table cell, an emphasis or a link."""
    return text.translate(_ESCAPES)


def _code(text: str) -> str:
    """A code span; a longer fence where the text holds backticks."""
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"
