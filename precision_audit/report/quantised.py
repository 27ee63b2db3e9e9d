"""What quantisation does to each linear: a table of layers by schemes, for reports that list every op.

Takes a `Report`; gives a title, a header and rows of strings. A cell is the relative L2 of the product with both
operands quantised, everything else exact; where half of the rows (tokens) or columns (features) is off by more than
twice that, which the large ones hide, it says so. A star marks the scheme that the plan swaps the layer for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from precision_audit.quantise import SCHEMES
from precision_audit.recipes import RECIPES
from precision_audit.records import Quantised, Report
from precision_audit.report import tables

TITLE = "quantised products, relative L2 (operands quantised, sums in fp32; * as swapped):"
_HIDDEN = 2.0  # times the whole, from which on a median is told
_SHORT = {
    "fp8_tensorwise": "fp8 tensor",
    "fp8_rowwise": "fp8 row",
    "fp8_blockwise_128": "fp8 128",
    "mxfp8_e4m3": "mxfp8",
}


def header() -> tuple[str, ...]:
    return ("linear", *(_SHORT.get(name, name) for name in SCHEMES))


def rows(report: Report) -> list[tuple[str, ...]]:
    """One per linear, in graph order; none where nothing was measured."""
    labels = tables.op_labels(report)
    swapped = {swap.op: RECIPES.get((swap.backend, swap.recipe)) for swap in report.plan.swaps}
    found: dict[str, dict[str, Quantised]] = {}
    for each in report.quantised:
        found.setdefault(each.op, {})[each.scheme] = each
    return [
        (
            labels.get(key, key),
            *(
                _cell(made.get(name)) + ("*" if (row := swapped.get(key)) is not None and row.scheme == name else "")
                for name in SCHEMES
            ),
        )
        for key, made in found.items()
    ]


def lines(report: Report) -> Sequence[str]:
    """The table as text, with its title."""
    from tabulate import tabulate

    made = rows(report)
    if not made:
        return ()
    return (TITLE, *tabulate(made, header(), tablefmt="plain", disable_numparse=True).splitlines())


def _cell(made: Quantised | None) -> str:
    if made is None:
        return "-"
    median, which = max((made.rows, "rows"), (made.columns, "columns"))
    hidden = median > _HIDDEN * made.error and not math.isinf(made.error)
    return _number(made.error) + (f" ({which} {_number(median)})" if hidden else "")


def _number(error: float) -> str:
    return "lost" if not math.isfinite(error) else f"{error:.1e}".replace("e-0", "e-").replace("e+00", "")
