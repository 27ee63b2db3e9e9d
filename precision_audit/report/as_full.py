"""The report for a terminal: what the model is, the verdict, what runs in which format, findings, verification, next.

Takes a `Report`, or a `Lint`, whose findings look alike; gives text of at most about 120 columns, colours only when
asked. Identical decisions and findings are grouped; `verbose` lists every op, every output and what is predicted, which
is never shown among what was measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from tabulate import tabulate

from precision_audit.records import Lint, Report
from precision_audit.report import costs, findings, layers, phrases, quantised, steps, tables

SUFFIXES = (".txt",)

_WHY_WIDTH = 54
_WIDTH = 120
_OPEN_LINES = 24  # of findings on the short screen, their details included
_RESOLVED_LINES = 5  # entries, of one line or two
_VERDICT_STYLE = {"READY": "good", "READY WITH CHANGES": "warn", "NOT READY": "bad", "NOT ENOUGH EVIDENCE": "warn"}
_SCALE_RULES = ("PA601", "PA602")  # whose remedy is a loop with a scaler
_SEVERITY_STYLE = {"error": "bad", "warning": "warn", "note": "quiet"}


def render(report: Report | Lint, *, verbose: bool = False, color: bool = False) -> str:
    """The whole screen."""
    sections = _of_lint(report, verbose, color) if isinstance(report, Lint) else _of_model(report, verbose, color)
    text = "\n\n".join("\n".join(lines) for lines in sections if lines)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _of_model(report: Report, verbose: bool, color: bool) -> list[list[str]]:
    return [
        list(_heading(report)),
        [f"{phrases.paint(report.verdict, _VERDICT_STYLE[report.verdict], color)}   {report.summary}"],
        list(_searched(report, verbose)),
        _op_table(report, verbose),
        list(_plan_lines(report, verbose)),
        list(_costs(report, verbose)),
        list(_layers(report, verbose)),
        list(_findings(report, verbose, color)),
        list(_training(report, verbose)),
        list(quantised.lines(report)) if verbose and report.quantised else [],
        list(_verification(report, verbose, color)),
        list(_next(report)),
    ]


def _of_lint(report: Lint, verbose: bool, color: bool) -> list[list[str]]:
    notes = [line for note in report.notes for line in _wrapped(f"note: {note}", "  ")]
    return [
        [*_wrapped(f"{report.tool}  lint {phrases.scripts(report)}", "  "), *notes],
        [report.summary],
        list(_findings(report, verbose, color)),
    ]


def _heading(report: Report) -> Iterator[str]:
    meta, graph = report.meta, report.graph
    tool = meta.tool if " " in meta.tool else f"{meta.tool} {dict(meta.versions).get(meta.tool, '')}".strip()
    yield f"{tool}  {phrases.path(meta.model)}  policy {meta.policy}  {phrases.device(meta)}"
    computed = sum("/" in op.key for op in graph.ops)
    symbols = "".join(f", {name} symbolic (example {value})" for name, value in graph.symbols)
    ops, parameters = phrases.count(computed, "op"), phrases.amount(meta.parameters)
    yield f"FX graph: {ops}, {graph.front_end}, {graph.mode} mode{symbols}, {parameters} parameters"
    more = f", {meta.batches} batches in all" if meta.batches > 1 else ""
    hint = ""
    if meta.batches == 1 and phrases.NOTHING_RUN not in meta.notes:
        hint = " (other inputs may reach further)" + ("; add --calibration-data batches.npz" if meta.command else "")
    yield from _wrapped(f"Evidence: {meta.weights}, {meta.inputs}{more}{hint}", "  ")
    told = any(finding.rule == "PA507" for finding in report.findings)  # which tells the notes of the capture
    for note in (*(() if told else graph.notes), *meta.notes):
        yield from _wrapped(f"note: {note}", "  ")


def _op_table(report: Report, verbose: bool) -> list[str]:
    rows = tables.op_rows(report, verbose)
    if not rows:
        return []
    widths = [None, None, None, None if verbose else _WHY_WIDTH]
    table = tabulate(rows, tables.OP_HEADER, tablefmt="simple", disable_numparse=True, maxcolwidths=widths)
    return table.splitlines()


def _searched(report: Report, verbose: bool) -> Iterator[str]:
    if report.search is None:
        return
    from precision_audit.report import search

    for line in search.summary(report):
        yield from _wrapped(line, "    ")
    yield ""
    yield from tabulate(
        search.points(report), search.POINTS_HEADER, tablefmt="simple", disable_numparse=True
    ).splitlines()
    rows, more = search.places(report, verbose)
    if rows:
        widths = [None, None, None, None, None if verbose else _WHY_WIDTH]
        yield ""
        yield from tabulate(
            rows, search.PLACES_HEADER, tablefmt="simple", disable_numparse=True, maxcolwidths=widths
        ).splitlines()
    if more:
        yield f"and {more} more that stay in {report.plan.high}; -v lists all"


def _plan_lines(report: Report, verbose: bool) -> Iterator[str]:
    yield tables.casts_line(report)
    if summed := tables.shared_gradients(report):
        yield summed
    if report.plan.environment:
        yield "environment: " + ", ".join(f"{key}={value}" for key, value in report.plan.environment)
    predicted = report.plan.predicted
    if verbose and predicted and predicted.error_share:
        yield f"predicted, not measured: relative error of the outputs {predicted.error_share**0.5:.2g}"


def _costs(report: Report, verbose: bool) -> Iterator[str]:
    for line in costs.lines(report, verbose):
        yield from _wrapped(line, "    ")
    if verbose and (rows := costs.module_rows(report)):
        header = costs.module_header(report)
        yield from tabulate([header, *rows], tablefmt="plain", disable_numparse=True).splitlines()


def _layers(report: Report, verbose: bool) -> Iterator[str]:
    """May and worth of every linear, verbose."""
    if not verbose or not (said := layers.counts(report)):
        return
    yield from _wrapped(said, "  ")
    yield from tabulate(layers.rows(report), layers.HEADER, tablefmt="simple", disable_numparse=True).splitlines()
    for remark in layers.remarks(report):
        yield from _wrapped(remark, "  ")


def _findings(report: Report | Lint, verbose: bool, color: bool) -> Iterator[str]:
    """What is open with its evidence and remedy, then a line for each that the plan resolved or the user suppressed."""
    found = findings.entries(report, "open", verbose)
    shown, more = (found, "") if verbose else findings.within(found, _OPEN_LINES)
    basis_width = max((len(each.basis) for each in shown), default=0) + 2
    severity_width = max((len(each.severity) for each in shown), default=0)
    for each in shown:
        before, severity = f"{each.location}: {each.rule} ", f"{each.severity:<{severity_width}}"
        basis = f"[{each.basis}]"
        first, *rest = _wrapped(f"{before}{severity} {basis:<{basis_width}}  {each.text}", "    ")
        painted = phrases.paint(severity, _SEVERITY_STYLE[each.severity], color)
        yield first.replace(before + severity, before + painted, 1)
        yield from rest
        yield from _details(each)
    if more:
        yield f"and {more} more; -v lists all"
    yield from _done(report, verbose)


def _done(report: Report | Lint, verbose: bool) -> Iterator[str]:
    """What the plan resolved; verbose: also what the user suppressed, which the summary counts."""
    done = findings.entries(report, "resolved", verbose)
    shown, more = (done, "") if verbose else findings.within(done, _RESOLVED_LINES, detailed=False)
    if shown and isinstance(report, Report):
        unswapped = any(each.resolved and each.refuses for each in report.findings)
        yield f"resolved by the plan, which keeps these in {report.plan.high}{' or swaps them not' * unswapped}:"
    for each in shown:
        yield from _wrapped(f"  {each.location}: {each.rule}  {each.text}", "    ")
        yield from (f"  {line}" for line in _details(each) if verbose)
    if more:
        yield f"  and {sum(each.count for each in done[len(shown) :])} more; -v lists all"
    for each in findings.entries(report, "suppressed", verbose) if verbose else ():
        yield from _wrapped(f"{each.location}: {each.rule} {each.verdict}: {each.text}", "  ")


def _details(entry: findings.Entry) -> Iterator[str]:
    if entry.code:
        yield f"  code: {entry.code}"
    if entry.evidence:
        yield from _wrapped(f"  evidence: {entry.evidence}", "    ")
    if entry.fix:
        yield from _wrapped(f"  fix: {entry.fix}", "    ")


def _training(report: Report, verbose: bool) -> Iterator[str]:
    if report.training is None:
        return
    from precision_audit.report import training  # needs torch, which a lint does without

    yield training.title(report)
    table = [training.header(report), *training.rows(report)]
    yield from tabulate(table, tablefmt="plain", disable_numparse=True).splitlines()
    for remark in training.remarks(report):
        yield from _wrapped(remark, "  ")
    if any(finding.rule in _SCALE_RULES and finding.open for finding in report.findings) or verbose:
        yield from training.loop(report)
    if verbose:
        for rows in ([training.tensor_header(report), *training.tensor_rows(report)], training.update_rows(report)):
            yield from tabulate(rows, tablefmt="plain", disable_numparse=True).splitlines()


def _verification(report: Report, verbose: bool, color: bool) -> Iterator[str]:
    if report.verification is None:
        yield "not verified: the model was not run"
        return
    rows = tables.verification_rows(report, verbose)
    header = tables.verification_header(report)
    if rows:
        lines = (header, *rows)
        table = tabulate(lines, tablefmt="plain", disable_numparse=True).splitlines()
        for line, row in zip(table, lines, strict=True):
            yield _painted(line, row, color)
    else:
        yield header[0]
    for line in steps.lines(report, verbose):
        yield from _wrapped(line, "    ")
    for remark in tables.remarks(report, verbose):
        yield from _wrapped(remark, "  ")


def _painted(line: str, row: Sequence[str], color: bool) -> str:
    status = row[-1]
    if not color or status not in ("pass", "FAIL"):
        return line
    before, _, after = line.rpartition(status)
    return before + phrases.paint(status, "good" if status == "pass" else "bad", color) + after


def _next(report: Report) -> Iterator[str]:
    for index, step in enumerate(report.next_steps):
        yield ("next: " if index == 0 else "      ") + step


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
