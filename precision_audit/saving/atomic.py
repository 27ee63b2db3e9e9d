"""Write a file or a folder in one go, or not at all.

Takes a path and a function that fills it; the result appears under its name only when it is complete, by a rename on
the same file system. A link stays: what it leads to is written. A folder carries `manifest.json` with the digest of
every file in it; that is also how a folder of ours is recognised. Must never replace a folder that holds anything
else: a folder is overwritten only when it is empty or when all in it is listed in a manifest of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from precision_audit.records import InputError

MANIFEST = "manifest.json"
TOOL = "precision-audit"


def write_file(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write beside `path`, then rename; an existing file is replaced."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; a file was expected: give another name, or remove the folder")
    path = _led_to(path)
    partial = _beside(path)
    try:
        partial.mkdir()
        fill(partial / path.name)  # under its own name, which some formats write into the file
        os.replace(partial / path.name, path)
    except OSError as error:
        raise InputError(_cannot_write(path, error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_folder(path: Path, fill: Callable[[Path], None], facts: Mapping[str, Any]) -> None:
    """Let `fill` write the files of a new folder, add a manifest of `facts` and digests, then put it at `path`."""
    path = _led_to(path)
    _refuse_foreign(path)
    partial, old = _beside(path), _beside(path, "old")
    try:
        partial.mkdir()
        fill(partial)
        files = {
            each.name: {"bytes": each.stat().st_size, "sha256": digest(each)} for each in sorted(partial.iterdir())
        }
        manifest = {"tool": TOOL, **facts, "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(partial, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
    except OSError as error:
        raise InputError(_cannot_write(path, error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a folder of ours."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} holds no {MANIFEST}: it is no folder that {TOOL} wrote") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path / MANIFEST} cannot be read ({error}): convert and save again") from error
    if not isinstance(manifest, dict) or manifest.get("tool") != TOOL or not isinstance(manifest.get("files"), dict):
        raise InputError(f"{path / MANIFEST} was not written by {TOOL}: give the folder of a conversion")
    return manifest


def check_digests(path: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
    """Are the named files those that were written?"""
    for name in names:
        written = manifest["files"].get(name)
        if written is None or not (path / name).is_file():
            raise InputError(f"{path / name} is missing: the folder is incomplete, convert and save again")
        if digest(path / name) != written["sha256"]:
            raise InputError(f"{path / name} has changed since it was saved: restore it, or convert and save again")


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is a file; a folder was expected: give another name")
    names = {each.name for each in path.iterdir()} - {"__pycache__"}
    if not names:
        return
    try:
        ours = {MANIFEST, *read_manifest(path)["files"]}
    except InputError:
        ours = set()
    if foreign := sorted(names - ours):
        raise InputError(f"{path} holds {foreign[0]}, which {TOOL} did not write: give an empty or a new folder")


def _led_to(path: Path) -> Path:
    """Where a link leads, which need not be there yet; other paths as they were given."""
    if not path.is_symlink():
        return path
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # a link that leads back to itself
        raise InputError(f"cannot write {path}: the link leads nowhere; give another name") from error


def _beside(path: Path, suffix: str = "partial") -> Path:
    """A hidden name in the same folder, hence on the same file system."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(_cannot_write(path, error)) from error
    return path.parent / f".{path.name}.{os.getpid()}.{suffix}"


def _cannot_write(path: Path, error: OSError) -> str:
    return f"cannot write {path}: {error.strerror or error}; give a path that can be written, with room on the disk"
