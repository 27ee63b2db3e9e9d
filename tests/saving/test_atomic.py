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


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "file").symlink_to("disk/file.txt")  # which is not there yet
    (tmp_path / "folder").symlink_to("disk/folder")
    (tmp_path / "loop").symlink_to("loop")
    for _ in range(2):
        atomic.write_file(tmp_path / "file", lambda file: (file.write_text("new"), None)[1])
        atomic.write_folder(tmp_path / "folder", _fill, {})
    assert (tmp_path / "file").is_symlink() and (tmp_path / "folder").is_symlink()
    found = sorted(str(each.relative_to(tmp_path)) for each in (tmp_path / "disk").rglob("*"))
    assert found == ["disk/file.txt", "disk/folder", "disk/folder/manifest.json", "disk/folder/one.txt"]
    assert (tmp_path / "disk" / "file.txt").read_text() == "new"
    with pytest.raises(InputError, match=r"cannot write .*loop"):
        atomic.write_file(tmp_path / "loop", lambda file: None)
