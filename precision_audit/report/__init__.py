"""Report formats: every file `as_<name>.py` of this folder is one, found by listing.

A format takes a `Report`, or the `Lint` of training scripts, and gives text; it has `SUFFIXES`, the endings of files it
is written to, and
`render(report, *, verbose=False, color=False) -> str`, which ignores what it has no use for. It must never read a
clock, a network or a file: the same report gives the same bytes. Paths under the working directory are written
relative to it, no other absolute path is written at all.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from precision_audit.records import InputError, Lint, Report

_PREFIX = "as_"


def formats() -> tuple[str, ...]:
    """Names for `--output-format`, sorted."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return tuple(sorted(name.removeprefix(_PREFIX) for name in found if name.startswith(_PREFIX)))


def render(report: Report | Lint, name: str, *, verbose: bool = False, color: bool = False) -> str:
    """The report in one format, ending in a line break."""
    return str(_module(name).render(report, verbose=verbose, color=color))


def for_file(path: str | Path) -> str:
    """The format that a file's ending asks for."""
    suffix = Path(path).suffix.lower()
    known = {ending: name for name in formats() for ending in _module(name).SUFFIXES}
    if suffix not in known:
        expected = ", ".join(f"{ending} ({name})" for ending, name in sorted(known.items()))
        raise InputError(f"-o {path}: no report format ends in {suffix or 'nothing'}; expected one of {expected}")
    return known[suffix]


def _module(name: str) -> ModuleType:
    if name not in formats():
        near = difflib.get_close_matches(name, formats(), 1)
        hint = f", did you mean {near[0]}" if near else ""
        raise InputError(f"--output-format {name}: no such report format{hint}; expected one of {', '.join(formats())}")
    return importlib.import_module(f"{__name__}.{_PREFIX}{name}")
