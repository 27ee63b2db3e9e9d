"""Shapes on the meta device: the words are those of torch's own checks for CUDA."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from precision_audit.backends.torchao_float8 import RECIPES, build, offer
from precision_audit.hardware import device
from precision_audit.records import Swap
from precision_audit.verify.device_shapes import check_shapes, on_meta
from tests.backends.graphs import sized
from tests.backends.swapped import Small, swap_for, swapped_net

H100 = device("h100")

# (K, N, M), backward?, recipe → the words of CUDA's rule
META = [
    ((64, 48, 32), True, "tensorwise", "pass"),
    ((64, 48, 32), True, "rowwise", "pass"),
    ((64, 48, 24), True, "rowwise_with_gw_hp", "pass"),
    ((64, 48, 24), False, "rowwise", "pass"),
    ((56, 48, 32), False, "rowwise", "size(1)=56"),
    ((64, 40, 32), False, "tensorwise", "divisible by 16"),
    ((64, 40, 32), True, "rowwise_with_gw_hp", "divisible by 16"),
    ((64, 48, 24), True, "rowwise", "size(1)=24"),
    ((64, 48, 24), True, "tensorwise", "size(1)=24"),
]


@pytest.mark.parametrize(("shape", "backward", "recipe", "words"), META)
def test_shapes_are_checked_as_cuda_does(shape: tuple[int, int, int], backward: bool, recipe: str, words: str) -> None:
    k, n, m = shape
    module = Small(k, n)
    plain = module.fc
    module.fc = build(plain, swap_for(recipe))  # type: ignore[assignment]
    found = check_shapes(module, (torch.randn(m, k),), mode="training" if backward else "inference")
    if words == "pass":
        assert found == "pass"
    else:
        assert found.startswith("fc: ")
        assert words in found
    assert module.fc.weight is plain.weight and module.fc.config.emulate and plain.weight.device.type == "cpu"


@pytest.mark.parametrize("m", [32, 24, 1])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("k", [64, 56])
@pytest.mark.parametrize("n", [48, 40])
def test_offer_agrees_with_the_device(m: int, recipe: str, k: int, n: int) -> None:
    """What `offer` takes passes on meta, and what it refuses for a size fails there."""
    module = Small(k, n)
    module.fc = build(module.fc, swap_for(recipe))  # type: ignore[assignment]
    op, records = sized(k, n, (m,), (m,))
    taken = isinstance(offer(op, records, recipe, "training", H100), Swap)
    assert taken == (check_shapes(module, (torch.randn(m, k),)) == "pass")


@pytest.mark.parametrize(("batch", "words"), [(32, "pass"), (24, "table: ")])
def test_a_whole_graph_is_checked_with_devices_baked_in(batch: int, words: str) -> None:
    _, module, tokens = swapped_net("rowwise", batch)  # holds arange(device="cpu")
    assert check_shapes(module, (tokens,)).startswith(words)
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}


def test_the_meta_copy_keeps_ties_and_holds_no_weights() -> None:
    _, module, _ = swapped_net("rowwise")
    twin = on_meta(module)
    assert all(parameter.is_meta for parameter in twin.parameters())
    assert twin.get_submodule("table").weight is twin.get_submodule("embedding").weight
    assert not twin.get_submodule("mix").config.emulate


def test_what_depends_on_data_is_not_checked_and_said() -> None:
    class Picks(Small):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x[x[:, 0] > 0])

    module = Picks(64, 48)
    module.fc = build(module.fc, swap_for("rowwise"))  # type: ignore[assignment]
    assert check_shapes(module, (torch.randn(32, 64),)).startswith("not checked: ")
