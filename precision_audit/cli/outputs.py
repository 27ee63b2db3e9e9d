"""Where the results go: checked before the work, written in one go after it.

Takes the `-o` values of a run; gives `Outputs`. Everything that would make writing fail (no such folder, no right, a
folder in the way, a file that was read as input) is found before the model is loaded, because a long audit that ends
with "permission denied" is lost. Never overwrites the user's model, checkpoint or policy.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from precision_audit import report
from precision_audit.records import InputError, Report

_LATER_SUFFIXES = (".html", ".sarif")


@dataclass(frozen=True, slots=True)
class Outputs:
    """`reports`: files and their formats. `model`: where a conversion goes, None for an audit. `pictures`: a folder."""

    reports: tuple[tuple[Path, str], ...]
    model: Path | None
    pictures: Path | None = None


def check(
    texts: Iterable[str],
    command: str,
    written: Mapping[str, str | None],
    read: Mapping[str, str | None],
    pictures: str | None = None,
) -> Outputs:
    """Sort the `-o` values and try each place. `written` are further files to be written, by the option that names
    them, `read` those this run reads, by what they are."""
    reports: list[tuple[Path, str]] = []
    models: list[Path] = []
    for text in texts:
        path = Path(text)
        suffix = path.suffix.lower()
        if suffix in _LATER_SUFFIXES:
            raise InputError(f"-o {text}: {suffix} reports are not available in this version; use .txt, .json or .md")
        if command in ("convert", "search") and (suffix == ".pt2" or not suffix or path.is_dir() or text.endswith("/")):
            models.append(path)
        else:
            reports.append((path, report.for_file(path)))
    if command == "convert" and len(models) != 1:
        got = f"{len(models)} were given" if models else "none was given"
        raise InputError(f"convert: expected one place for the model, {got}; add -o OUT.pt2 or -o FOLDER")
    if command == "search" and len(models) > 1:
        raise InputError(f"search: expected one place for the model, {len(models)} were given; keep one -o")
    named = [(path, f"-o {path}") for path in [*(path for path, _ in reports), *models]]
    named += [(Path(each), f"{option} {each}") for option, each in written.items() if each]
    for path, said in named:
        _check_place(path, said, folder=path in models and path.suffix.lower() != ".pt2", read=read)
    places = [path for path, _ in named]
    twice = next((i for i, path in enumerate(places) if path.absolute() in [p.absolute() for p in places[:i]]), None)
    if twice is not None:
        raise InputError(f"{named[twice][1]}: given twice; give every result its own file")
    folder = _checked_pictures(Path(pictures), places, read) if pictures else None
    return Outputs(tuple(reports), models[0] if models else None, folder)


def _checked_pictures(folder: Path, others: Iterable[Path], read: Mapping[str, str | None]) -> Path:
    """The folder of the pictures, whose parent must exist; it may hold other things, which stay."""
    from precision_audit.pictures import drawing, of_report

    drawing.require()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--pictures {folder}: is a file; expected a folder, give another name")
    if not folder.parent.is_dir():
        raise InputError(f"--pictures {folder}: there is no folder {folder.parent}; make it first")
    inside = [other for other in others if other.absolute() in (folder.absolute(), *folder.absolute().parents)]
    if inside:
        raise InputError(f"--pictures {folder}: {inside[0]} is a result of its own; give the pictures their own folder")
    if not folder.exists():
        _try(f"--pictures {folder}", folder.parent)
    else:
        for name in (f"{name}{suffix}" for name in of_report.NAMES for suffix in drawing.SUFFIXES):
            _check_place(folder / name, f"--pictures {folder / name}", folder=False, read=read)
    return folder


def _check_place(path: Path, said: str, folder: bool, read: Mapping[str, str | None]) -> None:
    """`said` is the option as it was typed, by which messages begin."""
    for what, other in read.items():
        if other and path.exists() and Path(other).exists() and path.samefile(other):
            raise InputError(f"{said}: is the {what} of this run and will not be overwritten; give another name")
    if path.is_dir() and not folder:
        raise InputError(f"{said}: is a folder; give a file in it")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{said}: is no ordinary file; give a file that can be replaced")
    if folder and path.is_file():
        raise InputError(f"{said}: is a file; give a folder, or a name that ends in .pt2")
    if folder and path.is_dir() and any(path.iterdir()):
        from precision_audit.saving import atomic

        atomic.read_manifest(path)  # a folder of ours may be replaced, no other
    parent = path.parent
    while folder and not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{said}: there is no folder {parent}; make it first")
    if path.is_file() and not os.access(path, os.W_OK):
        raise InputError(f"{said}: is write-protected; remove it or give another name")
    _try(said, parent)


def _try(said: str, parent: Path) -> None:
    """Can a file be made there?"""
    try:
        with tempfile.NamedTemporaryFile(dir=parent, prefix=".precision-audit-"):
            pass
    except OSError as error:
        raise InputError(f"{said}: cannot write in {parent} ({error.strerror}); give another folder") from error


def after_writing(report: Report, model: Path | None) -> Report:
    """The report of a conversion that was written: its next step is no longer to write it."""
    first, *others = report.next_steps or ("",)
    if model is None or not first.startswith("precision-audit convert ") or not first.endswith(" -o out/"):
        return report
    place = repr(str(model))
    how = f"torch.export.load({place}).module()" if model.suffix.lower() == ".pt2" else f"precision_audit.load({place})"
    return replace(report, next_steps=(f"load it in Python: {how}", *others))
