"""The gradient histogram: which magnitudes there are, against what a format can hold.

The picture of Micikevicius et al., Mixed Precision Training (2018), arXiv:1710.03740, figure 3: one bar for each power
of two, its height the share of all elements on a logarithmic scale, zeros as a bar of their own, the format's limits as
lines. Takes `Training`; draws one panel for each kind of tensor. With a loss scale the scaled histogram lies over the
other as an outline, with an arrow from peak to peak.

A limit drawn between two bars is where the numbers of the format end. What rounding to nearest does at the edge (from
half the smallest number on elements become the smallest number, not zero) is in the line below the picture.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from precision_audit.analyse.histogram import shares
from precision_audit.formats import Format, named
from precision_audit.pictures.bars import Bars, bars, shift_of
from precision_audit.pictures.drawing import DARK, GREY, MIDDLE, drawing, percent, power, say_in_the_middle
from precision_audit.records import InputError, Range, Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {
    "weights": "weights",
    "weight_gradients": "weight gradients",
    "activations": "activations",
    "activation_gradients": "activation gradients",
}
MATTERS = -27  # of fp16: gradients below 2**-27 made no difference to training, those from there on did (2018 paper)
_SHADES = {"zero": "#f2d5cf", "subnormal": "#f6ecd2", "unused": "#e6eef7", "overflows": "#f2d5cf"}


def gradient_histogram(
    training: Training,
    path: str | Path,
    format: str = "fp16",
    kind: str | Sequence[str] = "weight_gradients",
    parameter: str | None = None,
    scale: float | None = None,
) -> Path:
    """Draw the magnitudes of one kind of tensor, or of several in panels, against the limits of `format`.

    `kind`: "weights", "weight_gradients", "activations" or "activation_gradients", or a sequence of these.
    `parameter`: one value alone (a parameter's name, or a value's); all together where it is None. `scale`: a loss
    scale, a power of two. `path` ends in .svg or .png; an existing file is replaced. Returns the path.

    Raises InputError for an unknown kind, parameter or format, a format without fixed limits, another scale, or a
    place that cannot be written. Source: arXiv:1710.03740, figure 3."""
    kinds = (kind,) if isinstance(kind, str) else tuple(kind)
    limits = _limits(format)
    shift = shift_of(scale)
    panels = [_panel(training, each, parameter, shift, limits) for each in kinds]
    if not panels:
        raise InputError(f"kind={kind!r}: nothing to draw; expected at least one of {', '.join(KINDS)}")
    title = f"{', '.join(KINDS[each] for each in kinds)} against {format}"
    with drawing(path, title, height=4.6 * len(panels)) as figure:
        rows = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, panel in zip(rows, panels, strict=True):
            _draw(axes, panel, limits)
    return Path(path)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a format, as powers of two: `largest` need not be whole."""

    format: str
    smallest: int
    normal: int
    largest: float
    text: str  # the largest number, written out


@dataclass(frozen=True, slots=True)
class Panel:
    kind: str
    title: str
    plain: Bars
    scaled: Bars | None
    shift: int
    caption: str
    empty: str = ""  # why there are no bars of magnitudes


def _limits(format: str) -> Limits:
    row: Format = named(format)
    if row.kind != "float" or row.min_normal is None:
        raise InputError(
            f"format {format!r}: has no fixed limits ({row.kind}); expected a floating-point format such as fp16"
        )
    smallest = row.min_subnormal or row.min_normal
    largest = math.log2(row.max_finite)
    text = f"{row.max_finite:.0f}" if row.max_finite < 1e6 else f"about {power(round(largest))}"
    return Limits(format, math.frexp(smallest)[1] - 1, math.frexp(row.min_normal)[1] - 1, largest, text)


def _panel(training: Training, kind: str, parameter: str | None, shift: int, limits: Limits) -> Panel:
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, 1)
        mend = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(KINDS)}"
        raise InputError(f"kind={kind!r}: no such kind of tensor; {mend}")
    ranges: tuple[Range, ...] = getattr(training, kind)
    whose = f"{len(ranges)} tensors" if len(ranges) != 1 else ranges[0].value
    if parameter is not None:
        names = [each.value for each in ranges]
        if parameter not in names:
            near = difflib.get_close_matches(parameter, names, 1)
            mend = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(names[:5]) or 'none'}"
            raise InputError(f"parameter={parameter!r}: no {KINDS[kind]} of that name; {mend}")
        ranges, whose = tuple(each for each in ranges if each.value == parameter), parameter
    plain = bars(ranges)
    scaled = bars(ranges, shift) if shift else None
    steps = f"{training.steps} step" + ("s" if training.steps != 1 else "")
    title = f"{KINDS[kind].capitalize()} of {whose}, {steps}" if ranges else KINDS[kind].capitalize()
    empty = ""
    if not plain.count:
        empty = f"no {KINDS[kind]} were recorded"
    elif not plain.bins:
        rest = "zero" if not plain.lost else "NaN or infinite" if not plain.zeros else "zero, NaN or infinite"
        empty = f"all {KINDS[kind]} are {rest}"
    return Panel(kind, title, plain, scaled, shift, _caption(ranges, plain, scaled, limits), empty)


def _caption(ranges: Sequence[Range], plain: Bars, scaled: Bars | None, limits: Limits) -> str:
    """The figures, below the picture: one line as the tensors are, one as they are scaled."""
    if not plain.count:
        return ""
    smallest, beyond = power(limits.smallest), math.ceil(limits.largest)
    fits = [(shares(each, limits.format), each.count / plain.count) for each in ranges]
    small = plain.between(-math.inf, limits.smallest)
    vanish, over = (
        100 * math.fsum(getattr(fit, name) * part for fit, part in fits) for name in ("underflow", "overflow")
    )
    said = [f"{plain.count:,} element" + ("s" if plain.count != 1 else ""), f"zero: {percent(plain.zeros)}"]
    said += [f"NaN or infinite: {percent(plain.lost)}"] if plain.lost else []
    said += [f"not zero, below {smallest}: {percent(small)}" + (f" ({percent(vanish)} round to zero)" if small else "")]
    said += [f"beyond {limits.text}: {percent(over)}"] if over else []
    lines = ["; ".join(said)]
    if scaled is not None:
        after = [f"scaled: below {smallest}: {percent(scaled.between(-math.inf, limits.smallest))}"]
        over = scaled.between(beyond, math.inf)
        lines.append("; ".join([*after, *([f"beyond {limits.text}: {percent(over)}"] if over else [])]))
    return "\n".join(lines)


def _draw(axes: Axes, panel: Panel, limits: Limits) -> None:
    shown = [power for each in (panel.plain, panel.scaled) if each for power, _ in each.bins]
    paper = [MATTERS] if limits.format == "fp16" and "gradients" in panel.kind else []
    margin = max(10, round(0.12 * (limits.largest - limits.smallest)))  # room for a region's name
    left = min([*shown, limits.smallest - margin]) - 1
    edge, end = max([power + 1 for power in shown], default=limits.normal), math.ceil(limits.largest)
    right = max(edge + 1.5, end + 0.12 * (end - left)) if edge > end else end + 1.5
    gap = max(3.0, 0.03 * (right - left))  # between the magnitudes and the bars of what has none
    _heights(axes, panel)
    _bars(axes, panel, left - gap, right + gap, gap / 3)
    _regions(axes, panel, limits, paper, left, right)
    crowded = _lines(axes, limits, paper, right - left)
    axes.set_title(panel.title, pad=60 if crowded else 32)
    _axis(axes, panel, left, right, gap)
    if panel.scaled is not None and panel.plain.bins:
        _arrow(axes, panel)
    if panel.empty:
        say_in_the_middle(axes, panel.empty)


def _heights(axes: Axes, panel: Panel) -> None:
    """A logarithmic axis from below the lowest bar, with room above 100 % for the names of the regions."""
    drawn = [share for _, share in panel.plain.bins] + [s for s in (panel.plain.zeros, panel.plain.lost) if s]
    decade = min(math.floor(math.log10(min(drawn, default=0.1))), -1)
    axes.set_yscale("log")
    axes.set_ylim(10.0**decade / 2, 100 * 10 ** ((0.45 if panel.scaled else 0.28) * (2.3 - decade)))


def _bars(axes: Axes, panel: Panel, zeros: float, lost: float, width: float) -> None:
    """Every bar rests on the lower edge: a logarithmic axis has no zero."""
    floor = axes.get_ylim()[0]

    def block(what: str, bins: Sequence[tuple[float, float]], width: float = 1.0, **style: object) -> None:
        edges, heights = [edge for edge, _ in bins], [height - floor for _, height in bins]
        made = axes.bar(edges, heights, width=width, bottom=floor, align="edge", **style)  # type: ignore[arg-type]
        for number, bar in enumerate(made.patches):
            bar.set_gid(f"{panel.kind}-{what}-{number}")  # its id in an SVG

    label = "as they are" if panel.scaled is not None else None
    block("plain", panel.plain.bins, color=MIDDLE, edgecolor="white", linewidth=0.5, label=label, zorder=3)
    if panel.plain.zeros:
        block("zeros", [(zeros - width / 2, panel.plain.zeros)], width, color=GREY, edgecolor="white", zorder=3)
    if panel.plain.lost:
        edges = [(lost - width / 2, panel.plain.lost)]
        block("lost", edges, width, color="white", edgecolor=DARK, hatch="xxx", zorder=3)
    if panel.scaled is not None:
        label = f"times the loss scale {power(panel.shift)}"
        style = {"facecolor": "none", "edgecolor": DARK, "linewidth": 0.9, "hatch": "////"}
        block("scaled", panel.scaled.bins, 1.0, label=label, zorder=4, **style)
        legend = axes.legend(
            loc="lower left", bbox_to_anchor=(0.0, 0.63), framealpha=0.85, edgecolor="none", fontsize=8.5
        )
        legend.set_zorder(6)


def _regions(axes: Axes, panel: Panel, limits: Limits, paper: Sequence[int], left: float, right: float) -> None:
    top = panel.scaled or panel.plain
    highest = top.bins[-1][0] + 1 if top.bins else limits.normal
    unused = max(highest, limits.normal)
    regions = [
        ("zero", f"becomes zero\nin {limits.format}", left, limits.smallest),
        ("subnormal", "subnormal", limits.smallest, limits.normal),
        ("unused", "representable\nrange unused", unused, limits.largest),
        ("overflows", "overflows", limits.largest, right),
    ]
    for name, text, start, end in regions:
        if name == "overflows" and highest - 0.5 <= limits.largest:
            continue
        if end <= start:
            continue
        axes.axvspan(start, end, color=_SHADES[name], linewidth=0, zorder=0)
        if (end - start) / (right - left) > (0.1 if name == "unused" else 0.08):
            middle = (start + (paper[0] if name == "zero" and paper else end)) / 2
            axes.text(middle, 0.97, text, transform=axes.get_xaxis_transform(), ha="center", va="top",
                      fontsize=8.5, color=DARK)  # fmt: skip


def _lines(axes: Axes, limits: Limits, paper: Sequence[int], span: float) -> bool:
    """The limits, named above the axes, in two rows where one would be too crowded; is it?"""
    share = (limits.normal - limits.smallest) / span
    crowded = bool(paper) and share < 0.08
    lines = [
        (
            float(limits.smallest),
            f"smallest\n{power(limits.smallest)}",
            "left" if paper or share > 0.14 else "right",
            "-",
        ),
        (float(limits.normal), f"smallest normal\n{power(limits.normal)}", "left", "--"),
        (limits.largest, f"largest\n{limits.text}", "right", "-"),
        *((float(each), f"matters from here\n(2018 paper) {power(each)}", "right", ":") for each in paper),
    ]
    for place, text, side, style in lines:
        axes.axvline(place, color=DARK, linewidth=1.1, linestyle=style, zorder=5)
        row = 1.1 if crowded and place == limits.normal else 1.01
        axes.text(place, row, text, transform=axes.get_xaxis_transform(), ha=side, va="bottom", fontsize=8.5,
                  color=DARK)  # fmt: skip
    return crowded


def _axis(axes: Axes, panel: Panel, left: float, right: float, gap: float) -> None:
    every = 4 if right - left < 80 else 8 if right - left < 160 else 32
    ticks = [power for power in range(math.ceil(left), math.floor(right) + 1) if power % every == 0]
    places, names = [left - gap, *map(float, ticks)], ["0", *map(power, ticks)]
    if panel.plain.lost:
        places, names = [*places, right + gap], [*names, "NaN, ∞"]
    axes.set_xticks(places, names, fontsize=9)
    axes.set_xlim(left - 1.5 * gap, right + (2 * gap if panel.plain.lost else 0))
    low, high = (math.log10(edge) for edge in axes.get_ylim())
    decades = list(range(math.ceil(low), 3))
    decades = [each for each in decades if (2 - each) % (1 if high - low < 9 else 2) == 0]
    axes.set_yticks([10.0**each for each in decades], [_decade(each) for each in decades], fontsize=9)
    axes.minorticks_off()
    axes.set_ylabel("share of all elements", y=0.35)
    axes.set_xlabel("magnitude, one bar for each power of two" + (f"\n{panel.caption}" if panel.caption else ""))
    axes.xaxis.label.set_fontsize(9)


def _decade(exponent: int) -> str:
    return f"{10.0**exponent:g} %" if exponent >= -4 else f"{power(exponent, 10)} %"


def _arrow(axes: Axes, panel: Panel) -> None:
    """From the highest bar to where the scale moves it."""
    start, height = panel.plain.peak + 0.5, 0.80
    transform = axes.get_xaxis_transform()
    axes.annotate("", xy=(start + panel.shift, height), xytext=(start, height), xycoords=transform,
                  textcoords=transform, arrowprops={"arrowstyle": "-|>", "color": DARK, "linewidth": 1.6})  # fmt: skip
    axes.text(start + panel.shift / 2, height + 0.01, f"× {power(panel.shift)}", transform=transform, ha="center",
              va="bottom", fontsize=10, fontweight="bold", color=DARK)  # fmt: skip
