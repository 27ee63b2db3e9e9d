"""Reading a .pt2 unpickles nothing, and refuses what would."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import precision_audit as pa
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


class Regions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x)
        with torch.autocast("cpu", enabled=False):
            return self.b(y.float())


def test_a_model_with_regions_of_its_own_runs_when_it_is_read_back(tmp_path: Path) -> None:
    model, x = Regions(), torch.randn(2, 4)
    result = pa.convert(model, (x,), policy="bf16-inference")
    saved = pa.save(result.module, result.plan, tmp_path / "regions.pt2", (x,))
    assert torch.equal(pa.load(saved)(x), result.module(x))


class Says(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x * 2, "said"


class Pair(NamedTuple):
    one: torch.Tensor
    two: torch.Tensor


class Pairs(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Pair(x * 2, x + 1)


@pytest.mark.parametrize(("model", "words"), [(Says(), "the text 'said'"), (Pairs(), "namedtuple")])
def test_what_no_file_can_hold_is_refused_and_no_file_left(tmp_path: Path, model: Any, words: str) -> None:
    x = torch.randn(2)
    result = pa.convert(model, (x,))
    with pytest.raises(InputError, match=words):
        pa.save(result.module, result.plan, tmp_path / "out.pt2", (x,))
    assert list(tmp_path.iterdir()) == []


class Mixed(Regions):
    """Returns the region's own result beside what is made of it."""

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x)
        with torch.autocast("cpu", enabled=False):
            return self.b(y.float()), y


def test_an_output_that_export_would_change_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    result = pa.convert(Mixed(), (x,), policy="bf16-inference")
    assert [each.dtype for each in result.module(x)] == [torch.float32, torch.bfloat16]
    with pytest.raises(InputError, match="export would change output 1 from bf16 to fp32"):
        pa.save(result.module, result.plan, tmp_path / "mixed.pt2", (x,))


def test_a_loaded_graph_is_in_evaluation_and_says_so(tmp_path: Path) -> None:
    module, plan = converted()
    loaded = saving.load(saving.save(module, plan, tmp_path / "net.pt2", *inputs()))
    assert loaded.eval() is loaded and loaded.train(False) is loaded
    with pytest.raises(InputError, match="saved for evaluation"):
        loaded.train()
