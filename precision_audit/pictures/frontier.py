"""The plans a search looked at: predicted time against predicted error, the plan that was found marked.

Takes a `Search` and a path; writes one picture. Both axes are logarithmic; a plan without any predicted error stands at
the left edge, which says so. Draws what the search recorded and computes nothing.
"""

from __future__ import annotations

from pathlib import Path

from precision_audit.pictures.drawing import DARK, GREY, MIDDLE, drawing, say_in_the_middle
from precision_audit.records import Search

_MARKS = ("o", "s", "^", "D")  # by low format, for readers who see no colours
_LEFT = 10.0  # the left edge lies this factor below the least error


def frontier(search: Search, path: str | Path, *, title: str = "Predicted time against predicted error") -> Path:
    """Write the frontier, SVG or PNG by the suffix. Raises InputError where there is no matplotlib or no such place."""
    place = Path(path)
    with drawing(place, title, 5.0) as figure:
        axes = figure.subplots()
        axes.set_title(title)
        axes.set_xlabel("predicted relative error of the outputs")
        axes.set_ylabel("predicted time in µs")
        errors = [each.error for each in search.frontier if each.error > 0]
        if not errors:
            say_in_the_middle(axes, "no plan runs anything low")
            return place
        edge = min(errors) / _LEFT
        points = [(each.error or edge, each.seconds * 1e6, each) for each in search.frontier]
        axes.set_xscale("log")
        axes.set_yscale("log")
        ordered = sorted(points, key=lambda point: point[0])
        axes.step([x for x, _, _ in ordered], [y for _, y, _ in ordered], where="post", color=GREY, linewidth=1)
        for mark, low in zip(_MARKS, sorted({each.low for each in search.frontier}), strict=False):
            own = [(x, y) for x, y, each in points if each.low == low]
            axes.plot(*zip(*own, strict=True), mark, color=MIDDLE, linestyle="none", label=f"{low} beside high")
        for x, y, each in points:
            if each.chosen:
                axes.plot([x], [y], "*", color=DARK, markersize=16, linestyle="none", label="the plan found")
            if not each.error:
                axes.annotate("no error predicted", (x, y), textcoords="offset points", xytext=(8, -4), color=GREY)
        for bound in search.bounds:
            if bound.name == "relative_l2":
                axes.axvline(bound.limit, color=DARK, linestyle="--", linewidth=1, label=f"budget {bound.limit:.3g}")
        axes.legend(frameon=False)
    return place
