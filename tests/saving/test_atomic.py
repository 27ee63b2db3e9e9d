"""Written in one go or not at all; what is not ours is never touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_audit.records import InputError
from precision_audit.saving import atomic


def _fill(folder: Path) -> None:
    (folder / "one.txt").write_text("one")


def test_a_foreign_folder_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match=r"holds thesis\.txt, which precision-audit did not write"):
        atomic.write_folder(tmp_path / "out", _fill, {})
    assert [each.name for each in tmp_path.rglob("*")] == ["out", "thesis.txt"]


def test_our_folder_is_replaced_unless_something_was_added(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    atomic.write_folder(out, lambda folder: (_fill(folder), (folder / "two.txt").write_text("2"))[0], {})
    (out / "__pycache__").mkdir()
    atomic.write_folder(out, _fill, {})
    assert sorted(each.name for each in out.iterdir()) == ["manifest.json", "one.txt"]
    (out / "note.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds note\.txt"):
        atomic.write_folder(out, _fill, {})
    assert (out / "note.txt").read_text() == "mine"


def test_a_failure_leaves_the_old_folder_and_no_debris(tmp_path: Path) -> None:
    atomic.write_folder(tmp_path / "out", _fill, {})

    def fail(folder: Path) -> None:
        (folder / "half.bin").write_text("half")
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        atomic.write_folder(tmp_path / "out", fail, {})
    with pytest.raises(InputError, match="no"):
        atomic.write_file(tmp_path / "out.pt2", lambda file: (file.write_text("half"), fail(tmp_path))[0])
    (tmp_path / "half.bin").unlink()
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["manifest.json", "one.txt", "out"]


def test_a_file_and_a_folder_are_not_mixed_up(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("file")
    (tmp_path / "net.pt2").mkdir()
    with pytest.raises(InputError, match="is a file; a folder was expected"):
        atomic.write_folder(tmp_path / "out", _fill, {})
    with pytest.raises(InputError, match="is a folder; a file was expected"):
        atomic.write_file(tmp_path / "net.pt2", lambda file: None)
    with pytest.raises(InputError, match="cannot write"):
        atomic.write_folder(tmp_path / "out" / "below", _fill, {})
