"""Which linears belong together, and by which recipes they could be swapped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from precision_audit import policy as policies
from precision_audit.capture import capture
from precision_audit.searching.alternatives import alternatives, scheme_of, together, unbuilt
from tests.searching.small import BLACKWELL, TOY, Block, rows


class Reads(nn.Module):
    """Linears of several widths that read one value."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(64, width) for width in widths)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [part(x) for part in self.parts]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(torch.relu(self.fc(x)))
        return y


def graph_of(model, *args):
    return capture(model, args).graph


@pytest.mark.parametrize(
    ("widths", "groups"),
    [
        ((64, 64, 64), [(0, 1, 2)]),
        ((128, 32, 32), [(0, 1, 2)]),  # grouped queries: keys and values have fewer heads
        ((64, 8), []),  # a router
        ((128, 128, 8), [(0, 1)]),
        ((128, 96), []),  # neither divides the other
        ((8, 8), [(0, 1)]),
        ((64,), []),
    ],
)
def test_linears_that_read_one_value(widths, groups):
    found = together(graph_of(Reads(*widths), *rows(4, 64)))
    assert found == tuple(tuple(f"parts.{i}/linear#0" for i in group) for group in groups)


def test_q_k_v_and_gate_up_of_a_block():
    assert together(graph_of(Block(32), *rows(2, 4, 32))) == (
        ("attention.q/linear#0", "attention.k/linear#0", "attention.v/linear#0"),
        ("mlp.gate/linear#0", "mlp.up/linear#0"),
    )


def test_calls_of_one_module_go_together():
    assert together(graph_of(Twice(), *rows(4, 64))) == (("fc/linear#0", "fc/linear#1"),)


FREE = policies.load("search-bf16")


@pytest.mark.parametrize(
    ("hardware", "built_only", "some", "none"),
    [
        (TOY, False, {"fp8_tensorwise", "fp8_rowwise"}, {"nvfp4", "mxfp8_e4m3"}),
        (BLACKWELL, False, {"fp8_tensorwise", "fp8_rowwise", "nvfp4", "mxfp8_e4m3"}, set()),
        (BLACKWELL, True, {"fp8_rowwise", "nvfp4", "mxfp4"}, {"fp8_blockwise_128"}),  # torchao builds those
        (replace(TOY, capability="8.0", peaks=TOY.peaks[:3]), False, set(), {"fp8_tensorwise", "fp8_rowwise", "nvfp4"}),
    ],
)
def test_recipes_that_the_device_has(hardware, built_only, some, none):
    found = alternatives(graph_of(Reads(64), *rows(32, 64)), FREE, hardware, built_only)
    schemes = [scheme_of(swap) for swap in found.get("parts.0/linear#0", ())]
    assert some <= set(schemes) and none.isdisjoint(schemes)
    assert len(schemes) == len(set(schemes)), "one recipe for each way of quantising"


def test_in_training_only_recipes_that_have_gradients():
    graph = capture(Reads(64), rows(32, 64), mode="training").graph
    free = policies.load("search-bf16-training")
    built = alternatives(graph, free, BLACKWELL, True)["parts.0/linear#0"]
    assert {swap.backend for swap in built} == {"torchao"}
    planned = alternatives(graph, free, BLACKWELL)["parts.0/linear#0"]
    assert "NVFP4BlockScaling" in {swap.recipe for swap in planned}


def test_of_recipes_that_quantise_alike_the_cheapest_stands():
    (swaps,) = alternatives(graph_of(Reads(64), *rows(32, 64)), FREE, TOY, True).values()
    fp8 = {scheme_of(swap): swap.recipe for swap in swaps}
    assert fp8["fp8_rowwise"] == "float8dq-row", "its weight is quantised once, not in every call"


def test_sizes_that_no_recipe_takes():
    assert alternatives(graph_of(Reads(15), *rows(32, 64)), FREE, TOY) == {}


@pytest.mark.parametrize(
    ("rule", "recipes"),
    [
        ("class: fp8-eligible, recipe: tensorwise", {"tensorwise"}),
        ("class: fp8-eligible", {"tensorwise", "rowwise"}),
        ("class: safe-in-bf16", set()),
        ("class: keep-fp32", set()),
    ],
)
def test_a_policy_says_by_what_linears_may_be_swapped(rule, recipes):
    head = "name: mine\nmode: inference\nformats: {high: fp32, low: bf16}\nrules:\n"
    policy = policies.parse(
        f"{head}  - {{name: linears, op: linear, {rule}}}\n" + "  - {name: rest, class: keep-fp32}\n"
    )
    found = alternatives(graph_of(Reads(64), *rows(32, 64)), policy, TOY)
    assert {swap.recipe for swaps in found.values() for swap in swaps} >= recipes
    assert bool(found) == bool(recipes)


@pytest.mark.parametrize("hardware", [TOY, BLACKWELL])
def test_what_is_left_out_is_what_alternatives_leaves_out(hardware):
    graph = graph_of(Reads(64), *rows(32, 64))
    whole, built = (alternatives(graph, FREE, hardware, built_only) for built_only in (False, True))
    names = [
        {f"{swap.backend} {swap.recipe}" for swaps in found.values() for swap in swaps} for found in (whole, built)
    ]
    assert set(unbuilt(graph, FREE, hardware)) == names[0] - names[1]
