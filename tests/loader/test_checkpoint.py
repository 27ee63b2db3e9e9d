"""Checkpoints: strict, every difference listed, nothing unpickled."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from precision_audit.loader import checkpoint
from precision_audit.records import InputError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def full(value: float, kind: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((3, 2), value, dtype=kind), "bias": torch.full((3,), value, dtype=kind)}


def refused(model: nn.Module, path: Path) -> str:
    with pytest.raises(InputError) as error:
        checkpoint.load(model, path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_fills_every_parameter_in_place(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    weight = model.weight
    save_file(full(0.5), tmp_path / "w.safetensors")
    assert checkpoint.load(model, tmp_path / "w.safetensors") == "weights from w.safetensors, 2 tensors"
    assert model.weight is weight
    assert weight.requires_grad
    assert weight.tolist() == [[0.5, 0.5]] * 3


def test_another_format_is_read_and_stated(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    save_file(full(0.5, torch.bfloat16), tmp_path / "w.safetensors")
    said = checkpoint.load(model, str(tmp_path / "w.safetensors"))
    assert said == "weights from w.safetensors, 2 tensors; 2 stored as bf16, read as the model's fp32"
    assert model.weight.dtype == torch.float32
    assert model.bias.tolist() == [0.5] * 3


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_a_tied_tensor_may_stand_under_one_name(tmp_path: Path, name: str) -> None:
    model = Tied()
    save_file({name: torch.ones(6, 4), "count": torch.tensor(7)}, tmp_path / "w.safetensors")
    checkpoint.load(model, tmp_path / "w.safetensors")
    assert model.head.weight is model.embed.weight
    assert model.head.weight.sum() == 24
    assert model.count == 7


def test_a_model_on_the_meta_device_is_filled(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Tied()
    save_file({"embed.weight": torch.ones(6, 4), "count": torch.tensor(7)}, tmp_path / "w.safetensors")
    checkpoint.load(model, tmp_path / "w.safetensors")
    assert not any(tensor.is_meta for tensor in model.state_dict().values())
    assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()


DIFFERENT = [
    ({"weight": (3, 2)}, ["1 missing: bias"]),
    ({"weight": (3, 2), "bias": (3,), "scale": (1,)}, ["1 unexpected: scale"]),
    ({"weight": (2, 3), "bias": (3,)}, ["1 of another shape: weight (2x3 in the file, 3x2 in the model)"]),
    ({"module.weight": (3, 2), "module.bias": (3,)}, ["2 missing", "2 unexpected", "begin with 'module.'", "remove"]),
]


@pytest.mark.parametrize(("shapes", "parts"), DIFFERENT)
def test_differences_are_listed_and_nothing_is_changed(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], parts: list[str]
) -> None:
    model = nn.Linear(2, 3)
    before = model.weight.detach().clone()
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "w.safetensors")
    said = refused(model, tmp_path / "w.safetensors")
    assert "does not fit Linear" in said
    for part in parts:
        assert part in said
    assert torch.equal(model.weight, before)


def test_only_the_first_differences_are_named(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "w.safetensors")
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(5)))
    assert "10 missing: 0.weight, 0.bias, 1.weight, and 7 more" in refused(model, tmp_path / "w.safetensors")


def test_parts_listed_by_an_index(tmp_path: Path) -> None:
    tensors = full(2.0)
    save_file({"weight": tensors["weight"]}, tmp_path / "a.safetensors")
    save_file({"bias": tensors["bias"]}, tmp_path / "b.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "a.safetensors", "bias": "b.safetensors"}}))
    model = nn.Linear(2, 3)
    checkpoint.load(model, index)
    assert model.bias.tolist() == [2.0] * 3
    (tmp_path / "b.safetensors").unlink()
    assert "b.safetensors, which is not beside it" in refused(model, index)
    index.write_text('{"weight_map": {"weight": 3}}')
    assert "3, which is not beside it" in refused(model, index)
    index.write_text("[]")
    assert "not an index" in refused(model, index)


class Trap:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize("name", ["w.pt", "w.bin", "w.pth", "w.ckpt", "w.safetensors"])
def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    said = refused(nn.Linear(2, 3), Path(name))
    assert "safetensors" in said
    assert ("pickles" in said) == (name != "w.safetensors")
    assert not (tmp_path / "unpickled").exists()


def test_no_such_file_and_folders(tmp_path: Path) -> None:
    assert "no such file" in refused(nn.Linear(2, 3), tmp_path / "w.safetensors")
    assert "is a folder" in refused(nn.Linear(2, 3), tmp_path)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_nan_in_a_parameter_is_named(kind: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    checkpoint.check_parameters(model)
    with torch.no_grad():
        model[1].weight[1, 0] = float("nan")
        model[1].weight.data = model[1].weight.data.to(kind)
    with pytest.raises(InputError, match=r"parameter 1.weight holds NaN \(1 of 4 values\)"):
        checkpoint.check_parameters(model)


def test_infinities_buffers_and_meta_tensors_are_no_error() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2,), float("nan")))
    with torch.no_grad():
        model.weight[0, 0] = float("inf")
    checkpoint.check_parameters(model)
    checkpoint.check_parameters(nn.Linear(2, 2, device="meta"))
    assert torch.isinf(model.weight).sum() == 1
