"""Training curves: how the loss falls in one format beside the others.

Takes, for each name (`fp32`, `fp16 + scaler`), one run or several (other seeds); draws the mean of the runs as a line
and, for several, the spread from lowest to highest as a band. The first name is the reference: a broad pale line that
the others lie on. A run that becomes NaN or infinite ends in a cross, and the legend names the step. Lines differ in
style, so that they can be told apart without colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_audit.pictures.drawing import DARK, GREY, drawing, say_in_the_middle
from precision_audit.records import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3  # panels side by side
Runs = Sequence[float] | Sequence[Sequence[float]]

# Okabe and Ito's colours, which stay apart for colour-blind readers and in grey; a line style and a marker each.
_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#999999", "linestyle": "-", "linewidth": 5.0},
    {"color": "#000000", "linestyle": "-", "linewidth": 1.2, "marker": "o"},
    {"color": "#0072b2", "linestyle": "--", "linewidth": 1.6, "marker": "s"},
    {"color": "#d55e00", "linestyle": "-.", "linewidth": 1.6, "marker": "^"},
    {"color": "#009e73", "linestyle": ":", "linewidth": 2.0, "marker": "D"},
    {"color": "#cc79a7", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "linewidth": 1.6, "marker": "v"},
)


def training_curves(
    curves: Mapping[str, Runs],
    path: str | Path,
    *,
    title: str = "Training curves",
    quantity: str = "loss",
    smooth: int = 1,
    side_by_side: bool = False,
) -> Path:
    """Draw one curve for each name, over steps.

    `curves`: name → one number a step, or several runs of it. The first is the reference. `quantity` names the
    vertical axis, with its unit if it has one. `smooth`: each point is the mean of so many steps up to it.
    `side_by_side`: a panel for each name beside the reference, instead of all in one. `path` ends in .svg or .png; an
    existing file is replaced. Returns the path.

    Raises InputError for what is no sequence of numbers, more than six names in one panel, a smoothing that is no
    positive whole number, or a place that cannot be written."""
    if not isinstance(smooth, int) or smooth < 1:
        raise InputError(f"smooth={smooth!r}: expected a number of steps from 1")
    drawn = [curve(name, runs, smooth) for name, runs in curves.items()]
    if len(drawn) > len(_STYLES) and not side_by_side:
        raise InputError(
            f"{len(drawn)} curves: expected at most {len(_STYLES)} in one panel; leave some out, or side_by_side=True"
        )
    reference, others = drawn[:1], drawn[1:]
    panels = [[*reference, each] for each in others] if side_by_side and others else [drawn]
    label = quantity if smooth == 1 else f"{quantity}, mean of {smooth} steps"
    label += "\n(band: lowest to highest run)" if any(each.runs > 1 for each in drawn) else ""
    rows = math.ceil(len(panels) / _COLUMNS)
    with drawing(path, title, height=1.0 + 3.2 * rows) as figure:
        figure.suptitle(title, fontweight="bold", x=0.01, ha="left")
        _arrange(figure, panels, rows, label)
    return Path(path)


@dataclass(frozen=True, slots=True)
class Curve:
    """Per step from 1: mean, lowest and highest of the runs, as far as all of them are finite."""

    name: str
    mean: tuple[float, ...]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    runs: int
    lost: int = 0  # the first step at which a run is NaN or infinite, 0 for none


def curve(name: str, runs: Runs, smooth: int = 1) -> Curve:
    """The runs of one name as one curve; it ends with the shortest run, or where one stops being finite."""
    try:
        given: Any = runs if _several(runs) else [runs]
        many = [[float(value) for value in run] for run in given]
    except (TypeError, ValueError):
        raise InputError(
            f"curves[{name!r}]: expected a sequence of numbers, one a step, or a sequence of such runs"
        ) from None
    length = min(map(len, many), default=0)
    steps = [step for step in range(length) if not all(math.isfinite(run[step]) for run in many)]
    end = steps[0] if steps else length
    smoothed = [[_mean(run[max(0, step + 1 - smooth) : step + 1]) for step in range(end)] for run in many]
    columns = list(zip(*smoothed, strict=True))
    mean, low, high = tuple(map(_mean, columns)), tuple(map(min, columns)), tuple(map(max, columns))
    return Curve(name, mean, low, high, len(many), steps[0] + 1 if steps else 0)


def _several(runs: Runs) -> bool:
    return len(runs) > 0 and all(isinstance(run, Sequence) and not isinstance(run, str) for run in runs)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _arrange(figure: Figure, panels: Sequence[Sequence[Curve]], rows: int, label: str) -> None:
    """The panels row by row, over shared axes that are named at the left and below the lowest."""
    columns = min(len(panels), _COLUMNS)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, small=columns > 1)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[::columns]:
        axes.set_ylabel(label)
    for axes in grid[max(len(panels) - columns, 0) : len(panels)]:
        axes.set_xlabel("step")
        axes.tick_params(labelbottom=True)


def _draw(axes: Axes, panel: Sequence[Curve], small: bool) -> None:
    longest = max((len(each.mean) for each in panel), default=0)
    for number, each in enumerate(panel):
        style = dict(_STYLES[number])
        steps = range(1, len(each.mean) + 1)
        label = each.name + (f", {each.runs} runs" if each.runs > 1 else "")
        label += f": NaN or infinite from step {each.lost}" if each.lost else "" if each.mean else ": no steps"
        # markers at a few places that differ from line to line, or they would hide each other
        apart = max(1, longest // 8)
        every = (min(number * apart // len(_STYLES), max(longest - 1, 0)), apart)
        if each.runs > 1:
            style["linewidth"] = min(style["linewidth"], 2.0)
            axes.fill_between(steps, each.lowest, each.highest, alpha=0.35, color=style["color"], linewidth=0, zorder=1)
        axes.plot(steps, each.mean, label=label, markersize=5, markevery=every, zorder=2 + number, **style)
        if each.lost and each.mean:
            axes.plot([len(each.mean)], [each.mean[-1]], marker="X", color=DARK, markersize=9, zorder=9)
    if not any(each.mean for each in panel):
        say_in_the_middle(axes, "no steps were given" if not any(each.lost for each in panel) else "no finite step")
        axes.set_xticks([])
        axes.set_yticks([])
        return
    _logarithmic(axes, panel)
    axes.grid(alpha=0.25)
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="upper right", frameon=True, edgecolor=GREY, framealpha=0.9, fontsize=8 if small else 9,
                handlelength=2.5 if small else 4)  # fmt: skip


def _logarithmic(axes: Axes, panel: Sequence[Curve]) -> None:
    """A falling loss over more than a factor of 20 is read on a logarithmic axis."""
    values = [value for each in panel for value in each.lowest]
    if min(values) > 0 and max(values) / min(values) > 20:
        from matplotlib.ticker import FuncFormatter, LogLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.minorticks_off()
