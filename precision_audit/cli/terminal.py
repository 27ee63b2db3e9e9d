"""What a person sees beside the report: a progress bar, lines on stderr, colours.

Gives a bar only on a terminal, and colours only where they can be shown and `NO_COLOR` is not set. Nothing here writes
to stdout, which belongs to the report.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(quiet: bool, stages: int) -> Iterator[Callable[[str], None]]:
    """A bar that is called with the name of each stage as it begins; does nothing where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(total=stages, leave=False, bar_format="{desc} {bar} {elapsed}", file=sys.stderr) as bar:

        def begin(name: str) -> None:
            bar.set_description_str(name)
            bar.update()

        yield begin


@contextlib.contextmanager
def without_warnings(debug: bool) -> Iterator[None]:
    """Warnings of torch and of the user's code are no part of a report; `debug` shows them."""
    with warnings.catch_warnings():
        if not debug:
            warnings.simplefilter("ignore")
        yield


def color() -> bool:
    """Colours on a terminal that has them, unless NO_COLOR is set to anything (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    print(text, file=sys.stderr)
