"""What a search found, as lines: the budgets with what was measured, the frontier, what stays high where, and why.

Takes a `Report` with its `Search`; gives rows and lines that the screen and Markdown share. What is predicted (times,
the frontier's errors) is called so.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Place, Report, Search
from precision_audit.report import phrases
from precision_audit.searching.budgets import OF_METRIC

POINTS_HEADER = ("", "predicted time", "predicted error", "low", "ops low", "swaps", "casts")
PLACES_HEADER = ("op", "module", "line", "runs in", "why")
_PLACES = 20  # on the short screen
_OUTCOMES = {"met": "found", "nothing low": "found nothing that runs low", "not met": "NOT MET"}


def summary(report: Report) -> Iterator[str]:
    """Whether every budget is kept, by what, and what it is predicted to save."""
    search = _of(report)
    runs = f"{phrases.count(search.runs, 'run')} of a converted model"
    yield f"search: {_OUTCOMES[search.outcome]}, {runs} after the evidence"
    for each in search.bounds:
        own = each.name in OF_METRIC
        measured = f"{each.measured:.6g}, the model's own {each.reference:.6g}" if own else f"{each.measured:.3g}"
        yield f"  {each.stated}: measured {measured}; {_percent(each.usage)} of the budget"
    ratio = search.seconds_high / search.seconds if search.seconds else 1.0
    beside = phrases.baseline(report.graph, report.plan.high)
    yield (
        f"  predicted, not measured: {phrases.duration(search.seconds)} against "
        f"{phrases.duration(search.seconds_high)} {beside}, {ratio:.2f} times as fast; "
        f"relative error {search.predicted_error:.2g}"
    )
    for unit in search.together:
        yield f"  the same format for {', '.join(unit)}"
    yield from (f"  note: {note}" for note in search.notes)


def points(report: Report) -> list[list[str]]:
    """The frontier, fastest first; the plan that was found is marked."""
    return [
        [
            "*" if each.chosen else "",
            phrases.duration(each.seconds),
            f"{each.error:.2g}",
            each.low if each.ops_low or each.swaps else "-",
            f"{each.ops_low} of {each.ops}",
            ", ".join(f"{count} {name}" for name, count in each.swaps) or "-",
            str(each.casts),
        ]
        for each in _of(report).frontier
    ]


def places(report: Report, verbose: bool) -> tuple[list[list[str]], int]:
    """Swapped linears and ops that stay high, and how many more there are than are shown."""
    search = _of(report)
    found = [*search.swapped, *search.high]
    shown = found if verbose else found[:_PLACES]
    return [_row(each) for each in shown], len(found) - len(shown)


def _row(place: Place) -> list[str]:
    line = f"{phrases.path(place.source.file)}:{place.source.line}" if place.source else "-"
    return [place.op, place.module or "-", line, place.format, place.why]


def _percent(usage: float) -> str:
    return f"{usage * 100:.0f} %" if usage < 1e4 else "far more than all"


def _of(report: Report) -> Search:
    assert report.search is not None
    return report.search
