"""An empty figure, and the file it ends in.

`drawing` checks the place, lends a figure and writes it, whole or not at all, when all is drawn. The settings are
matplotlib's own defaults with a few of ours, whatever the user's are, and the user's are back afterwards; the figure
belongs to no backend. No date, version or random id is written, so that the same numbers give the same bytes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_audit.records import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
DARK, MIDDLE, GREY = "#222222", "#3b6ea5", "#767676"
WIDTH = 9.0  # inches
_SETTINGS: Any = {
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "precision-audit",  # ids by content instead of by chance
}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@contextmanager
def drawing(path: str | Path, title: str, height: float) -> Iterator[Figure]:
    """A figure of WIDTH x `height` inches, written to `path` at the end (PNG: 150 dots an inch). `title` goes into the
    file's metadata. Raises InputError where there is no matplotlib or no such place."""
    place = checked(path)
    require()
    import matplotlib
    from matplotlib.figure import Figure

    from precision_audit.saving import atomic

    svg = place.suffix.lower() == ".svg"
    metadata = {"Title": title, "Date": None, "Creator": None} if svg else {"Title": title, "Software": None}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure
        atomic.write_file(
            place,
            lambda partial: figure.savefig(partial, format=place.suffix.lower()[1:], dpi=150, metadata=metadata),
        )


def checked(path: str | Path) -> Path:
    """The path, if a picture can be written there; an existing file is replaced, as a report is."""
    place = Path(path)
    if place.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: pictures are written as {' or '.join(SUFFIXES)}; end the name in one of these")
    if place.is_dir():
        raise InputError(f"{path}: is a folder; a file was expected: give a name in it")
    if not place.parent.is_dir():
        raise InputError(f"{path}: there is no folder {place.parent}; make it first")
    return place


def require() -> None:
    """InputError where the package that draws is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            "pictures need matplotlib, which is not installed; expected the extra 'pictures': "
            "pip install 'precision-audit[pictures]'"
        )


def power(exponent: int, base: int = 2) -> str:
    """base**exponent as people write it: 2⁻²⁴."""
    return str(base) + str(exponent).translate(_SUPERSCRIPTS)


def percent(share: float) -> str:
    """A share in percent, to three digits."""
    return f"{share:.3g} %"


def say_in_the_middle(axes: Axes, text: str) -> None:
    """What stands where there is nothing to draw."""
    axes.text(0.5, 0.45, text, transform=axes.transAxes, ha="center", va="center", color=DARK, fontsize=11,
              bbox={"facecolor": "white", "edgecolor": GREY, "boxstyle": "round,pad=0.6"}, zorder=10)  # fmt: skip
