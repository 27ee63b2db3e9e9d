"""Weights in a safetensors file: every tensor once, in its own format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from precision_audit.records import InputError
from precision_audit.saving import weights


def test_weights_of_every_shape_come_back(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    state = {
        "a": base[:6],  # two views of one storage
        "b": base[6:],
        "c": base.reshape(3, 4).t(),  # not contiguous
        "d": torch.tensor(3),
        "e": torch.empty(0, 4),
        "f": torch.empty(0, 4),
        "g": torch.ones(2, dtype=torch.bfloat16),
    }
    state["h"] = state["g"]  # tied
    weights.write(state, tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    assert sorted(found) == ["a", "b", "c", "d", "e", "f", "g"]
    assert all(torch.equal(value, state[name]) and value.dtype == state[name].dtype for name, value in found.items())


def test_weights_without_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a is on the meta device"):
        weights.write({"a": torch.empty(2, device="meta")}, tmp_path / "w.safetensors")
