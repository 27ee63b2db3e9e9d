"""A swap in an FX graph trains, keeps ties and calls, and its state dict loads both ways."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precision_audit as pa
from precision_audit.backends.torchao_float8 import RECIPES
from precision_audit.policy import parse
from tests.backends.swapped import swapped_net


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_swapped_graph_trains(recipe: str) -> None:
    _, module, tokens = swapped_net(recipe)
    labels = tokens[:, 0] % 10
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    losses = []
    for _ in range(50):
        loss = F.cross_entropy(module(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        assert all(g is not None and g.dtype == torch.float32 and g.isfinite().all() for g in gradients.values())
        assert all(g.abs().max() > 0 for name, g in gradients.items() if g is not None), gradients.keys()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_swapped_graph_is_near_the_original_and_not_equal(recipe: str) -> None:
    net, module, tokens = swapped_net(recipe)
    expected, found = net(tokens), module(tokens)
    error = ((found - expected).norm() / expected.norm()).item()
    # Each e4m3 operand carries up to 2^-4 relative rounding error; three products in a row stay well below one.
    assert 1e-4 < error < 0.2
    assert found.dtype == expected.dtype


@pytest.mark.parametrize("recipe", RECIPES)
def test_state_dict_loads_both_ways_strictly(recipe: str) -> None:
    net, module, _ = swapped_net(recipe)
    assert set(module.state_dict()) == set(net.state_dict())
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    net.load_state_dict(module.state_dict(), strict=True)
    assert torch.equal(net.mix.weight, module.get_submodule("mix").weight)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    module.load_state_dict(net.state_dict(), strict=True)
    assert torch.equal(net.table.weight, module.get_submodule("table").weight)


def test_ties_and_calls_survive() -> None:
    _, module, _ = swapped_net("rowwise")
    assert module.get_submodule("table").weight is module.get_submodule("embedding").weight
    calls = [node.target for node in module.graph.nodes if node.op == "call_module"]
    assert calls == ["mix", "mix", "table"]


TIED = """\
name: tied
mode: inference
device: h100
formats: {high: fp32, low: bf16}
rules:
  - {name: linears, op: linear, class: fp8-eligible, backend: torchao}
  - {name: rest, class: safe-in-bf16}
"""


def test_a_weight_of_a_swapped_linear_that_is_also_read_low() -> None:
    """The low copy cannot lie in the module that the swap replaces."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.head(self.table(ids))
            return y

    model, ids = Tied(), torch.arange(64).reshape(4, 16)
    made = pa.convert(model, (ids,), policy=parse(TIED), verify=False)
    assert [swap.module for swap in made.plan.swaps] == ["head"]
    assert any(fold.copy and fold.consumers == ("table/embedding#0",) for fold in made.plan.folds)
    expected, found = model(ids), made.module(ids)
    assert (found - expected).norm() / expected.norm() < 0.1  # e4m3 carries 2^-4
