"""The report for a terminal: what the model is, the verdict, what runs in which format, findings, verification, next.

Takes a `Report`; gives text of at most about 120 columns, colours only when asked. Identical decisions and findings are
grouped; `verbose` lists every op, every output and what is predicted, which is never shown among what was measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from tabulate import tabulate

from precision_audit.records import Report
from precision_audit.report import phrases, tables

SUFFIXES = (".txt",)

_WHY_WIDTH = 54
_WIDTH = 120
_VERDICT_STYLE = {"READY": "good", "READY WITH CHANGES": "warn", "NOT READY": "bad", "NOT ENOUGH EVIDENCE": "warn"}
_SEVERITY_STYLE = {"error": "bad", "warning": "warn", "note": "quiet"}


def render(report: Report, *, verbose: bool = False, color: bool = False) -> str:
    """The whole screen."""
    sections = [
        list(_heading(report)),
        [f"{phrases.paint(report.verdict, _VERDICT_STYLE[report.verdict], color)}   {report.summary}"],
        _op_table(report, verbose),
        list(_plan_lines(report, verbose)),
        list(_findings(report, verbose, color)),
        list(_verification(report, verbose, color)),
        list(_next(report)),
    ]
    text = "\n\n".join("\n".join(lines) for lines in sections if lines)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _heading(report: Report) -> Iterator[str]:
    meta, graph = report.meta, report.graph
    tool = meta.tool if " " in meta.tool else f"{meta.tool} {dict(meta.versions).get(meta.tool, '')}".strip()
    yield f"{tool}  {phrases.path(meta.model)}  policy {meta.policy}  device {meta.device} ({meta.device_from})"
    computed = sum("/" in op.key for op in graph.ops)
    symbols = "".join(f", {name} symbolic (example {value})" for name, value in graph.symbols)
    ops, parameters = phrases.count(computed, "op"), phrases.amount(meta.parameters)
    yield f"FX graph: {ops}, {graph.front_end}, {graph.mode} mode{symbols}, {parameters} parameters"
    more = f", {meta.batches} batches in all" if meta.batches > 1 else ""
    hint = "; add --calibration-data batches.npz" if meta.batches == 1 and meta.command else ""
    yield f"Evidence: {meta.weights}, {meta.inputs}{more}{hint}"
    for note in graph.notes:
        yield from _wrapped(f"note: {note}", "  ")


def _op_table(report: Report, verbose: bool) -> list[str]:
    rows = tables.op_rows(report, verbose)
    if not rows:
        return []
    widths = [None, None, None, None if verbose else _WHY_WIDTH]
    table = tabulate(rows, tables.OP_HEADER, tablefmt="simple", disable_numparse=True, maxcolwidths=widths)
    return table.splitlines()


def _plan_lines(report: Report, verbose: bool) -> Iterator[str]:
    yield tables.casts_line(report)
    if summed := tables.shared_gradients(report):
        yield summed
    if report.plan.environment:
        yield "environment: " + ", ".join(f"{key}={value}" for key, value in report.plan.environment)
    predicted = report.plan.predicted
    if verbose and predicted:
        yield (
            f"predicted, not measured: {predicted.seconds:.3g} s against {predicted.seconds_high:.3g} s all in "
            f"{report.plan.high}; casts {predicted.cast_seconds:.2g} s, {phrases.size(predicted.cast_bytes)}"
        )


def _findings(report: Report, verbose: bool, color: bool) -> Iterator[str]:
    found = tables.entries(report, verbose)
    basis_width = max((len(each.basis) for each in found), default=0) + 2
    severity_width = max((len(each.severity) for each in found), default=0)
    for each in found:
        severity = phrases.paint(f"{each.severity:<{severity_width}}", _SEVERITY_STYLE[each.severity], color)
        basis = f"[{each.basis}]"
        yield f"{each.location}: {each.rule} {severity} {basis:<{basis_width}}  {each.text}"
        if each.fix:
            yield f"  fix: {each.fix}"


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
