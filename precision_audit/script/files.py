"""Which files a lint reads, and their text.

Takes the paths of a command line; gives every Python file once, in order. A file that was named and cannot be read is
refused in one line; one that was only met in a folder is left out and said to be. Never leaves a folder it was given,
and never reads virtual environments, hidden folders or caches.
"""

from __future__ import annotations

import difflib
import io
import os
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from precision_audit.records import InputError

_NOTEBOOK = ".ipynb"
_PYTHON = (".py", ".pyw", "")
_PASSED_OVER = ("node_modules", "__pycache__", "site-packages")


def listed(paths: Iterable[str]) -> tuple[list[tuple[str, bool]], list[str]]:
    """The files with whether each was named itself, and notes on what was passed over."""
    found: dict[str, tuple[str, bool]] = {}
    notes = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = list(_inside(path))
            notebooks = sum(each.suffix == _NOTEBOOK for each in inside)
            python = [each for each in inside if each.suffix == ".py"]
            if not python:
                raise InputError(f"{text}: no Python file in this folder; give a training script")
            for each in python:
                found.setdefault(os.path.realpath(each), (str(each), False))
            if notebooks:
                notes.append(f"{text}: {notebooks} notebook{'s' * (notebooks > 1)} not read; export them as scripts")
        else:
            _refuse(path)
            found[os.path.realpath(path)] = (text, True)
    return list(found.values()), notes


def text_of(file: str) -> str:
    """The text of a Python file, decoded as Python would."""
    content = Path(file).read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return io.TextIOWrapper(io.BytesIO(content), encoding).read()
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        reason = str(error).partition(":")[0] if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{file}: not readable as Python text ({reason}); save it as UTF-8") from error


def _refuse(path: Path) -> None:
    if not path.exists():
        try:
            beside = [each.name for each in path.parent.iterdir()]
        except OSError:
            beside = []
        near = difflib.get_close_matches(path.name, beside, 1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "give a Python file or a folder"
        raise InputError(f"{path}: no such file; {hint}")
    if path.suffix == _NOTEBOOK:
        raise InputError(
            f"{path}: is a notebook; lint reads Python files, export it: jupyter nbconvert --to script {path}"
        )
    if path.suffix not in _PYTHON or not path.is_file():
        raise InputError(f"{path}: is no Python file; give a training script (.py) or a folder of them")


def _inside(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        here = Path(where)
        folders[:] = sorted(name for name in folders if not _passed_over(here / name))
        yield from (here / name for name in sorted(files) if not name.startswith("."))


def _passed_over(folder: Path) -> bool:
    name = folder.name
    return name.startswith(".") or name in _PASSED_OVER or (folder / "pyvenv.cfg").exists()
