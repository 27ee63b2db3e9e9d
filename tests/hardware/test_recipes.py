"""Which device has which recipe: against the libraries' own checks, written out here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_audit.hardware import DEVICES, device
from precision_audit.hardware.recipes import chosen, conditions, devices, existing, lacking
from precision_audit.recipes import RECIPES, Recipe, recipe
from precision_audit.records import Hardware

TE = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling", "NVFP4BlockScaling")

# TransformerEngine 2.20's capability checks, CUDA 13 assumed; NVFP4 on 12.0 passes them and fails in its kernel.
TE_HAS = {
    "6.0": "-----",
    "7.0": "-----",
    "7.5": "-----",
    "8.0": "-----",
    "8.6": "-----",
    "8.9": "yy---",
    "9.0": "yyy--",
    "10.0": "yyyyy",
    "10.3": "yyyyy",
    "12.0": "yyy--",
}
# torch's _scaled_mm: per tensor from 8.9 on and on AMD's CDNA 3 and 4; per row not on 12.0 (pytorch issue 192707).
TORCHAO_HAS = {
    "8.9": "yyy",
    "9.0": "yyy",
    "10.0": "yyy",
    "10.3": "yyy",
    "12.0": "y--",
    "gfx942": "yyy",
    "gfx950": "yyy",
}
TORCHAO = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


def _on(capability: str) -> Hardware:
    """A device of which nothing but its capability is known."""
    return Hardware("mine", "", capability, (("fp32", 1e12),), 1e9, 2e-6, "")


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_agrees_with_transformer_engine(name: str) -> None:
    row = DEVICES[name]
    found = "".join("-" if lacking(recipe("transformer_engine", each), row) else "y" for each in TE)
    assert found == TE_HAS.get(row.capability, "-----")


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_agrees_with_scaled_mm(name: str) -> None:
    row = DEVICES[name]
    found = "".join("-" if lacking(recipe("torchao", each), row) else "y" for each in TORCHAO)
    assert found == TORCHAO_HAS.get(row.capability, "---")


@pytest.mark.parametrize("capability", TE_HAS)
def test_the_capability_alone_decides_where_units_are_not_known(capability: str) -> None:
    """As for a device that was measured."""
    found = "".join("-" if lacking(recipe("transformer_engine", each), _on(capability)) else "y" for each in TE)
    assert found == TE_HAS[capability]


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_every_reason_is_one_line_that_names_recipe_and_device(name: str) -> None:
    for row in RECIPES.values():
        reason = lacking(row, DEVICES[name])
        assert "\n" not in reason
        assert reason == "" or (row.name in reason and name in reason)


@pytest.mark.parametrize(
    ("backend", "name", "on", "reason"),
    [
        ("transformer_engine", "NVFP4BlockScaling", "h100",
         "NVFP4BlockScaling needs compute capability 10.0 (Blackwell) or later; h100 (Hopper) is 9.0"),
        ("transformer_engine", "MXFP8BlockScaling", "h200",
         "MXFP8BlockScaling needs compute capability 10.0 (Blackwell) or later; h200 (Hopper) is 9.0"),
        ("torchao", "rowwise", "a100",
         "fp8 rowwise needs compute capability 8.9 (Ada) or later; a100 (Ampere) is 8.0"),
        ("torchao", "tensorwise", "cpu-amx",
         "fp8 tensorwise needs a GPU of compute capability 8.9 (Ada) or later; cpu-amx is a CPU"),
        ("torchao", "tensorwise", "mps-m1-max",
         "fp8 tensorwise needs a GPU of compute capability 8.9 (Ada) or later; mps-m1-max (Apple 7) is Apple's GPU"),
        ("transformer_engine", "DelayedScaling", "mi300x",
         "fp8 DelayedScaling needs CUDA and compute capability 8.9 (Ada) or later; mi300x (CDNA 3) is gfx942"),
    ],
)  # fmt: skip
def test_the_words(backend: str, name: str, on: str, reason: str) -> None:
    assert lacking(recipe(backend, name), device(on)) == reason


@pytest.mark.parametrize(
    ("backend", "name", "issue"),
    [
        ("torchao", "rowwise", "pytorch issue 192707"),
        ("transformer_engine", "MXFP8BlockScaling", "issue 2304"),
        ("transformer_engine", "NVFP4BlockScaling", "issues 2255, 2372"),
    ],
)
def test_what_fails_in_practice_is_refused_with_the_issue(backend: str, name: str, issue: str) -> None:
    reason = lacking(recipe(backend, name), device("rtx5090"))
    assert issue in reason and "12.0" in reason and "rtx5090" in reason


BLOCKS = Recipe("other", "blocks", "fp8_blockwise_128", "fp8", (True,) * 3, (1,) * 3, (1,) * 3, ("training",))
MINE = replace(BLOCKS, only=("9.0", "10.0"))


@pytest.mark.parametrize(("capability", "has"), [("9.0", True), ("10.0", True), ("9.1", False), ("12.0", False)])
def test_a_recipe_of_single_capabilities(capability: str, has: bool) -> None:
    assert (lacking(MINE, _on(capability)) == "") is has


def test_a_recipe_that_asks_for_no_capability() -> None:
    """Weights that are only stored in a format run anywhere; products in it want a unit, or a table that knows none."""
    weights = replace(BLOCKS, activations=False)
    assert {name for name in DEVICES if lacking(weights, DEVICES[name])} == set()
    without = {name for name in DEVICES if lacking(BLOCKS, DEVICES[name])}
    assert {"v100", "a100", "mps-m1-max"} <= without and not {"h100", "l4", "mi300x"} & without
    assert lacking(BLOCKS, device("a100")) == "fp8 blocks needs units for fp8, which a100 has not"
    assert lacking(BLOCKS, _on("7.0")) == ""


def test_amd_is_judged_by_its_architectures() -> None:
    assert lacking(replace(BLOCKS, minimum="8.9", rocm=("gfx950",)), device("mi355x")) == ""
    reason = lacking(replace(BLOCKS, minimum="8.9", rocm=("gfx950",)), device("mi300x"))
    assert reason == "fp8 blocks runs on AMD's gfx950; mi300x (CDNA 3) is gfx942"


@pytest.mark.parametrize(
    ("backend", "on", "name"),
    [
        ("torchao", "h100", "rowwise"),
        ("torchao", "a100", "rowwise"),
        ("torchao", "rtx5090", "tensorwise"),
        ("torchao", "cpu-amx", "rowwise"),
        # te.autocast's own default
        ("transformer_engine", "h100", "DelayedScaling"),
        ("transformer_engine", "b200", "MXFP8BlockScaling"),
        ("transformer_engine", "b300", "MXFP8BlockScaling"),
        ("transformer_engine", "rtx5090", "Float8CurrentScaling"),
    ],
)
def test_the_default_of_a_backend_on_a_device(backend: str, on: str, name: str) -> None:
    assert chosen(backend, "", device(on)) is recipe(backend, name)


def test_a_recipe_that_is_named_is_the_one() -> None:
    assert chosen("torchao", "tensorwise", device("h100")) is recipe("torchao", "tensorwise")
    assert chosen("transformer_engine", "DelayedScaling", device("b200")) is recipe(
        "transformer_engine", "DelayedScaling"
    )


@pytest.mark.parametrize(
    ("name", "on", "said"),
    [
        ("Float8BlockScaling", "h100", ("needs CUDA 12.9",)),
        ("Float8BlockScaling", "b200", ("needs CUDA 12.9", "runs as MXFP8 there")),
        ("Float8BlockScaling", "rtx5090", ("needs CUDA 12.9",)),
        ("DelayedScaling", "l4", ("needs CUDA 12.1 and cuBLASLt 12.1.3",)),
        ("DelayedScaling", "h100", ()),
    ],
)
def test_what_must_be_known_beside(name: str, on: str, said: tuple[str, ...]) -> None:
    assert conditions(recipe("transformer_engine", name), device(on)) == said


def test_what_exists_where() -> None:
    assert [row.name for row in existing(device("v100"))] == ["float8wo", "int8wo"]  # stored so, multiplied in fp16
    assert [row.name for row in existing(device("cpu-amx"))] == ["float8wo", "int8dq", "int8wo"]
    assert [row.name for row in existing(device("rtx5090"), "torchao")] == ["tensorwise"]
    assert devices(recipe("transformer_engine", "NVFP4BlockScaling")) == ("b200", "gb200", "b300")


def test_every_refused_range_says_why() -> None:
    assert all(row.beyond for row in RECIPES.values() if row.below)
