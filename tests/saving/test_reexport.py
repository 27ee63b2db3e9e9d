"""Reading a .pt2 unpickles nothing, and refuses what would."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_audit import saving
from precision_audit.records import InputError
from precision_audit.saving import reexport
from tests.conversions import Net, converted, inputs, run, swapped


def test_loading_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, plain_plan = converted()
    other, other_plan = swapped()
    saving.save(plain, plain_plan, tmp_path / "net.pt2", *inputs())
    saving.save(other, other_plan, tmp_path / "out", *inputs())
    with zipfile.ZipFile(tmp_path / "net.pt2") as archive:  # the user's sample inputs are not in it
        assert [e.file_size for e in archive.infolist() if e.filename.endswith((".pt", ".pkl"))] == [0]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    for where, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(where, name, refuse)
    assert torch.equal(run(saving.load(tmp_path / "net.pt2")), run(plain))
    assert torch.equal(run(saving.load(tmp_path / "out", Net())), run(other))


class _Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return open, (str(self.file), "w")


@pytest.mark.parametrize("place", ["data/sample_inputs/model.pt", "data/constants/model.pt", "data/weights/model.pt"])
def test_a_file_with_pickles_is_refused_unread(tmp_path: Path, place: str) -> None:
    module, plan = converted()
    saving.save(module, plan, tmp_path / "net.pt2", *inputs())
    content = io.BytesIO()
    torch.save((_Trap(tmp_path / "sprung"),), content)
    with zipfile.ZipFile(tmp_path / "net.pt2", "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{place}", content.getvalue())
    with pytest.raises(InputError, match="holds pickled objects"):
        saving.load(tmp_path / "net.pt2")
    assert not (tmp_path / "sprung").exists()


def test_a_config_that_asks_for_pickle_is_refused(tmp_path: Path) -> None:
    entry = {"config": {"w": {"path_name": "weight_0", "is_param": True, "use_pickle": True, "tensor_meta": None}}}
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/data/weights/model_weights_config.json", json.dumps(entry))
    with pytest.raises(InputError, match="holds pickled objects"):
        reexport.read_program(tmp_path / "net.pt2")
