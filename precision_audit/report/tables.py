"""The rows of a report's tables, for every format that has tables.

Takes a `Report`; gives rows of strings: what runs in which format, the verification. Identical decisions are one row.
Never drops a failing row. Findings: `findings.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from precision_audit.records import Comparison, Decision, Op, Report
from precision_audit.report import phrases
from precision_audit.report.verdict import shapes_refused

OP_HEADER = ("op", "class", "runs in", "why")
_OP_WIDTH = 34
DISAGREE = 2.0  # times the other figure, from which on the median over rows stands beside the whole
_OUTPUTS_SHOWN = 4  # passing outputs on the short screen; those that fail are always shown


def op_rows(report: Report, verbose: bool) -> list[tuple[str, str, str, str]]:
    """A row for all ops with the same class, format and reason, in the order of their first op; verbose: a row each."""
    ops = {op.key: op for op in report.graph.ops if "/" in op.key}
    chosen = [decision for decision in report.decisions if decision.op in ops]
    if verbose:
        return [(each.op, each.classification, each.chosen, each.reason) for each in chosen]
    groups: dict[tuple[str, str, str], list[Op]] = {}
    formats: dict[tuple[str, str, str], dict[str, None]] = {}
    for each in chosen:
        # what nobody chose (integers, the user's own casts) is one row, whatever its formats
        same = (each.classification, "" if each.classification == "fixed" else each.chosen, each.reason)
        groups.setdefault(same, []).append(ops[each.op])
        formats.setdefault(same, {})[each.chosen] = None
    labels = op_labels(report)
    by_key = {op.key: op for op in report.graph.ops}
    linears = {op.key: _sizes(op, by_key) for members in groups.values() for op in members}
    width = max((len(found[0]) for found in linears.values() if found), default=0)
    rows = []
    for same, members in groups.items():
        sizes = {linears[op.key] for op in members}
        only = sizes.pop() if len(sizes) == 1 else None
        suffix = f"  {only[0]:>{width}} -> {only[1]}" if only else ""
        shown = phrases.names([labels[op.key] for op in members], _OP_WIDTH - len(suffix)) + suffix
        rows.append((shown, same[0], ", ".join(formats[same]), same[2]))
    return rows


def op_labels(report: Report) -> dict[str, str]:
    """What each computed op is called."""
    computed = [op for op in report.graph.ops if "/" in op.key]
    per_module = Counter(op.module for op in computed)
    return {op.key: phrases.label(op, per_module[op.module] == 1) for op in computed}


def casts_line(report: Report) -> str:
    """`casts: 2 of activations, 6 of parameters; torch.autocast makes 10`, and what is folded into storage."""
    kinds = {op.key: op.kind for op in report.graph.ops}
    state = sum(kinds.get(cast.value, "") in ("parameter", "buffer", "constant") for cast in report.plan.casts)
    parts = [f"{len(report.plan.casts) - state} of activations", f"{state} of parameters"]
    if report.plan.folds:
        to = ", ".join(sorted({fold.to for fold in report.plan.folds}))
        parts.append(f"{phrases.count(len(report.plan.folds), 'parameter')} stored in {to} once")
    copies = [fold for fold in report.plan.folds if fold.copy]
    if copies:
        extra = phrases.size(sum(fold.bytes for fold in copies))
        parts.append(f"{len(copies)} of them beside the original ({extra} more)")
    return f"casts: {', '.join(parts)}; torch.autocast makes {report.autocast_casts}"


def shared_gradients(report: Report) -> str:
    """In fp16: casts whose gradient is a sum over several readers, made in fp16, which can overflow where no term
    does. "" where there is none."""
    if report.plan.mode != "training":
        return ""
    shared = sum(cast.to == "fp16" and len(cast.consumers) > 1 for cast in report.plan.casts)
    if not shared:
        return ""
    return f"{phrases.count(shared, 'cast')} to fp16 with several readers: their gradients are summed in fp16"


def verification_header(report: Report) -> tuple[str, str, str, str, str]:
    found = report.verification
    device = found.device if found else "CPU"
    imitated = "".join(f", {name} emulated" for name in (found.emulated if found else ()))
    return (f"verified on {device}{imitated}", "this plan", f"plain {report.plan.low}", "limit", "")


def verification_rows(report: Report, verbose: bool = False) -> list[tuple[str, str, str, str, str]]:
    """Label, this plan, plain low precision, limit, pass or FAIL."""
    found = report.verification
    if found is None:
        return []
    shown = list(found.outputs) if verbose else _worth_showing(found.outputs)
    rows = [row for each in shown for row in _output_rows(each, verbose)]
    hidden = len(found.outputs) - len(shown)
    if hidden:
        rows.append((f"{phrases.count(hidden, 'more output')}", "", "", "", "pass"))
    if found.gradients:
        worst = max(found.gradients, key=_ratio)
        rows.append(_row(f"worst gradient ({worst.name})", worst))
        failed = [each for each in found.gradients if not each.passed and each is not worst]
        rows.extend(_row(f"gradient ({each.name})", each) for each in (failed if verbose else failed[:3]))
    if found.shapes:
        # the text of a failure is too wide for a table: it goes below
        refused = shapes_refused(found.shapes)
        word = "fail" if refused else found.shapes.partition(":")[0]  # pass, not checked
        rows.append((_shapes_label(report), word, "-", "-", "FAIL" if refused else ""))
    return rows


def remarks(report: Report, verbose: bool = False) -> list[str]:
    """What the verification has to say beside its table; verbose: also that runs are bitwise equal, as they should."""
    found = report.verification
    if found is None:
        return []
    lines = []
    named = phrases.baseline(report.graph, report.plan.high)
    if named != f"all {report.plan.high}" and found.outputs:
        lines.append(f"errors are those against {named}, not against {report.plan.high}")
    for label, text in (("reference", found.reference), ("captured against eager", found.captured_against_eager)):
        expected = all(part.startswith("bitwise") for part in text.split("; "))
        if text and (verbose or not expected):
            lines.append(f"{label}: {text}")
    if found.shapes not in ("", "pass"):
        lines.append(f"shapes: {found.shapes}")
    if found.first_parting:
        sources = {op.key: op.source for op in report.graph.ops}
        source = sources.get(found.first_parting)
        where = f" ({phrases.location(source, '')})" if source else ""
        lines.append(f"first op at which both part: {found.first_parting}{where}")
    return lines + list(found.notes)


def _sizes(op: Op, by_key: dict[str, Op]) -> tuple[str, str] | None:
    """K and N of a linear, from its weight."""
    weights = [by_key.get(operand.value) for operand in op.operands if operand.argument == "weight"]
    if op.op != "linear" or not weights or weights[0] is None or not weights[0].outputs:
        return None
    shape = weights[0].outputs[0].shape
    return (str(shape[1]), str(shape[0])) if len(shape) == 2 else None


def _worth_showing(outputs: Sequence[Comparison]) -> list[Comparison]:
    """Those that fail and the worst of the others, in their own order."""
    passing = sorted((each for each in outputs if each.passed), key=_ratio, reverse=True)[:_OUTPUTS_SHOWN]
    return [each for each in outputs if not each.passed or each in passing]


def _output_rows(found: Comparison, verbose: bool) -> list[tuple[str, str, str, str, str]]:
    rows = [_row(f"{found.name}, {found.figure}", found)]
    if found.row_median is not None and (verbose or _hides(found.relative_l2, found.row_median)):
        medians = (phrases.figure(found.row_median), phrases.figure(found.plain_row_median))
        rows.append((f"{found.name}, median row", *medians, "-", ""))
    if found.nonfinite or found.reference_nonfinite:
        rows.append(
            (f"{found.name}, not finite", str(found.nonfinite), "-", f"{found.reference_nonfinite} in reference", "")
        )
    if found.flip_rate or (verbose and found.flip_rate is not None):
        rows.append((f"{found.name}, argmax changed", phrases.share(found.flip_rate), "-", "-", ""))
    if verbose and found.figure == "relative L2":
        rows.append((f"{found.name}, largest difference", phrases.figure(found.max_abs), "-", "-", ""))
        rows.append((f"{found.name}, SQNR", f"{found.sqnr_db:.1f} dB", "-", "-", ""))
        rows.append((f"{found.name}, cosine", f"{found.cosine:.8g}", "-", "-", ""))
    return rows


def _hides(whole: float, median: float) -> bool:
    """Whether a few rows decide the figure of the whole: those that are far off, or large ones that are exact."""
    return max(whole, median) > DISAGREE * min(whole, median)


def _row(label: str, found: Comparison) -> tuple[str, str, str, str, str]:
    value, plain, limit = found.relative_l2, found.plain_relative_l2, found.limit
    if found.figure == "elements changed":
        more = phrases.needed(value, limit, phrases.share)
        figures = (phrases.share(value, more), phrases.share(plain), phrases.share(limit, more))
    else:
        more = phrases.needed(value, limit, phrases.figure)
        figures = (phrases.figure(value, more=more), phrases.figure(plain), phrases.figure(limit, True, more))
    return (label, *figures, _status(found.passed) if found.compared else "nothing compared")


def _ratio(found: Comparison) -> float:
    """How much of its limit a figure uses up."""
    if found.limit is None:
        return found.relative_l2
    if found.limit == 0:
        return math.inf if found.relative_l2 else 0.0
    return found.relative_l2 / found.limit


def _status(passed: bool) -> str:
    return "pass" if passed else "FAIL"


def _shapes_label(report: Report) -> str:
    sizes = "".join(f", {name}={value}" for name, value in report.graph.symbols)
    direction = "fwd+bwd" if report.graph.mode == "training" else "forward"
    return f"CUDA shapes, {direction}{sizes}"


def format_counts(decisions: Sequence[Decision]) -> str:
    """`10 bf16, 1 fp32, 1 fp8 rowwise`, most frequent first."""
    counts = Counter(each.chosen for each in decisions if "/" in each.op and each.chosen)
    return ", ".join(
        f"{number} {name}" for name, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
