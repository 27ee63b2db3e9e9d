"""Underflow and loss scale over the steps of a training, one above the other.

Takes two sequences with one number a step: the share (0 to 1) of the non-zero gradients below fp16's smallest number,
2**-24, and the loss scale in use. Where the scale falls, the step before had an overflow and was skipped: those steps
are marked and counted. Either sequence may be empty, and the picture then says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precision_audit.pictures.drawing import DARK, MIDDLE, drawing, percent, power, say_in_the_middle
from precision_audit.records import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKED = 60  # steps up to which each has a marker of its own


def underflow_and_scale(below: Sequence[float], scales: Sequence[float], path: str | Path) -> Path:
    """Draw the share of gradients below 2**-24 and the loss scale over steps.

    `below`: per step, a share from 0 to 1 of the gradients that are not zero, without the scale. `scales`: per step,
    the loss scale it ran with. Both as long, or one empty. `path` ends in .svg or .png; an existing file is replaced.
    Returns the path. Raises InputError for other lengths, shares outside 0 to 1 or a place that cannot be written."""
    below, scales = [float(each) for each in below], [float(each) for each in scales]
    if below and scales and len(below) != len(scales):
        raise InputError(
            f"below has {len(below)} steps and scales {len(scales)}; expected one number a step in both, or one empty"
        )
    wrong = next((each for each in below if not math.isnan(each) and not 0 <= each <= 1), None)
    if wrong is not None:
        raise InputError(f"below holds {wrong:g}; expected shares from 0 to 1: divide percentages by 100")
    with drawing(path, "gradients below 2^-24 and loss scale", height=5.4) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        _shares(upper, below)
        _scales(lower, scales)
        lower.set_xlabel("step")
        lower.locator_params(axis="x", integer=True)
        lower.set_xlim(0.5, max(len(below), len(scales), 1) + 0.5)
    return Path(path)


def falls(scales: Sequence[float]) -> list[int]:
    """Steps, from 1, whose gradients overflowed: the scale is lower in the step after."""
    return [step for step in range(1, len(scales)) if scales[step] < scales[step - 1]]


def _shares(axes: Axes, below: Sequence[float]) -> None:
    axes.set_ylabel(f"not zero and\nbelow {power(-24)} (%)")
    finite = [100 * share for share in below if not math.isnan(share)]
    if not finite:
        axes.set_title("Gradients too small for fp16")
        axes.set_ylim(0, 1)
        say_in_the_middle(axes, "no gradients were measured" if not below else "no step had a gradient but zero")
        return
    middle = sorted(finite)[len(finite) // 2]
    axes.set_title(f"Gradients too small for fp16: {percent(middle)} in the median step")
    steps = range(1, len(below) + 1)
    marker = "o" if len(below) <= _MARKED else ""
    axes.plot(steps, [100 * share for share in below], color=MIDDLE, linewidth=1.6, marker=marker, markersize=4)
    axes.set_ylim(0, max(finite) * 1.15 or 1.0)
    axes.grid(axis="y", alpha=0.25)


def _scales(axes: Axes, scales: Sequence[float]) -> None:
    axes.set_ylabel("loss scale")
    usable = [scale for scale in scales if math.isfinite(scale) and scale > 0]
    if not usable:
        axes.set_title("Loss scale")
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        say_in_the_middle(axes, "trained without a loss scale")
        return
    skipped = falls(scales)
    count = f"{len(skipped)} step{'' if len(skipped) == 1 else 's'} skipped (▼)" if skipped else "no step skipped"
    axes.set_title(f"Loss scale: first {scales[0]:g}, last {scales[-1]:g}, {count}")
    axes.step(range(1, len(scales) + 1), scales, where="mid", color=DARK, linewidth=1.6)
    fallen = [scales[step - 1] for step in skipped]
    axes.plot(skipped, fallen, linestyle="", marker="v", color=DARK, markersize=7, clip_on=False, zorder=5)
    axes.set_yscale("log", base=2)
    low, high = math.floor(math.log2(min(usable))) - 1, math.ceil(math.log2(max(usable))) + 1
    axes.set_ylim(2.0**low, 2.0**high)
    ticks = range(low, high + 1, max(1, (high - low) // 6))
    axes.set_yticks([2.0**tick for tick in ticks], [power(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.25)
