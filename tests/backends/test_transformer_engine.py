"""TransformerEngine: what a plan says where it would be chosen. The library itself is not needed, nor imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import nn

from precision_audit.backends import transformer_engine
from precision_audit.backends.transformer_engine import RECIPES, build, offer
from precision_audit.hardware import device
from precision_audit.records import InputError, Mode, Refusal, Swap
from tests.backends.graphs import entering, graph, linear, sized, state

H100 = device("h100")

# recipe, mode, (K, N, M) → the words after which nothing else stands against the linear
SIZES = [
    ("DelayedScaling", "inference", (64, 40, 24), "would be chosen"),  # N % 8, M % 8 suffice forward
    ("DelayedScaling", "training", (64, 40, 32), "N=40 is not a multiple of 16"),
    ("DelayedScaling", "training", (64, 48, 24), "M=24 is not a multiple of 16"),
    ("DelayedScaling", "inference", (64, 48, 1), "M=1 is not a multiple of 8"),
    ("Float8CurrentScaling", "inference", (72, 48, 32), "K=72 is not a multiple of 16"),
    ("Float8CurrentScaling", "training", (64, 48, 32), "would be chosen"),
    ("MXFP8BlockScaling", "training", (48, 64, 32), "K=48 is not a multiple of 32"),
    ("MXFP8BlockScaling", "inference", (64, 64, 32), "would be chosen"),
    ("Float8BlockScaling", "training", (128, 64, 128), "N=64 is not a multiple of 128"),
    ("NVFP4BlockScaling", "inference", (64, 48, 24), "M=24 is not a multiple of 16"),
]


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_engine, "_PACKAGES", ("no_such_package_of_anyone",))


@pytest.mark.usefixtures("not_installed")
@pytest.mark.parametrize(("recipe", "mode", "shape", "words"), SIZES)
def test_sizes_by_recipe(recipe: str, mode: Mode, shape: tuple[int, int, int], words: str) -> None:
    k, n, m = shape
    op, records = sized(k, n, (m,), (m,))
    found = offer(op, records, recipe, mode, H100)
    assert isinstance(found, Refusal)
    assert found.backend == "transformer_engine"
    assert words in found.reason
    assert ("precision-audit[te]" in found.reason) == (words == "would be chosen")


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    op, records = sized()
    monkeypatch.setattr(transformer_engine, "_PACKAGES", ("torch",))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "there is no CUDA device here" in offer(op, records, "DelayedScaling", "training", H100).reason  # type: ignore[union-attr]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "does not build it" in offer(op, records, "DelayedScaling", "training", H100).reason  # type: ignore[union-attr]


@pytest.mark.usefixtures("not_installed")
def test_open_sizes_are_stated() -> None:
    op, records = sized(lead=("B",), hint=(64,), symbols=(("B", 64),))
    found = offer(op, records, "DelayedScaling", "training", H100)
    assert isinstance(found, Refusal)
    assert found.reason.startswith("te.Linear with DelayedScaling would be chosen where B % 16 == 0, but ")


def test_a_functional_linear_is_refused_before_all_else() -> None:
    op = linear("attn", "attn.in_proj_weight", "", module_type="torch.nn.modules.activation.MultiheadAttention")
    records = graph(entering((16, 64), (16, 64)), state("attn.in_proj_weight", (192, 64)), op)
    found = offer(op, records, "DelayedScaling", "training", H100)
    assert isinstance(found, Refusal)
    assert found.reason.startswith("functional linear")


def test_build_is_one_clear_line() -> None:
    swap = Swap("fc/linear#0", "fc", "transformer_engine", RECIPES[0], 64, 48, 32)
    with pytest.raises(InputError, match=r"fc cannot be swapped for te\.Linear"):
        build(nn.Linear(64, 48), swap)


def test_no_library_is_imported() -> None:
    code = (
        "import sys; from precision_audit import backends; backends.listed();"
        "sys.exit(any(name.split('.')[0] in ('torchao', 'transformer_engine') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
