"""What torchao's own walk over modules loses, drops or miscounts, one test each: this package swaps it rightly or
refuses it with a reason. Models are converted whole; nothing is said of speed here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit.backends.torchao_float8 import is_swapped
from precision_audit.policy import parse

TRAINING = """\
name: swaps
mode: training
device: h100
formats: {high: fp32, low: bf16}
tolerances: {relative_l2: 2.0e-1, gradient_relative_l2: 1.0}
rules:
  - {name: linears, op: linear, class: fp8-eligible, backend: torchao, recipe: rowwise}
  - {name: rest, class: follow}
"""
INFERENCE = TRAINING.replace("training", "inference").replace(", gradient_relative_l2: 1.0", "")
QUANTISED = INFERENCE.replace("backend: torchao, recipe: rowwise", "backend: torchao_quantize, recipe: float8dq-row")
X = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))


def converted(model: nn.Module, text: str = TRAINING, *args: torch.Tensor) -> Any:
    torch.manual_seed(0)
    return pa.convert(model, args or (X,), policy=parse(text), verify=False)


def refusals(result: Any) -> dict[str, str]:
    return {each.module: each.reason for each in result.plan.refusals}


def swapped(result: Any) -> list[str]:
    return [each.module for each in result.plan.swaps]


class Chain(nn.Module):
    """Any layer between two plain linears."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 64), middle, nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.middle(self.first(x)))
        return y


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def near(result: Any, model: nn.Module, *args: torch.Tensor) -> bool:
    """Within what a few fp8 products in a row may lose: far less than what a lost factor or hook would change."""
    expected, found = model(*(args or (X,))), result.module(*(args or (X,)))
    return bool((found - expected).norm() < 0.15 * expected.norm())


@pytest.mark.parametrize("text", [TRAINING, INFERENCE, QUANTISED])
def test_a_subclass_with_a_forward_of_its_own_is_refused_and_keeps_it(text: str) -> None:
    model = Chain(Doubled(64, 64))
    result = converted(model, text)
    assert swapped(result) == ["first", "last"] and near(result, model)
    assert "not exactly nn.Linear: a swap would drop what the class adds" in refusals(result)["middle"]


@pytest.mark.parametrize("text", [TRAINING, INFERENCE, QUANTISED])
def test_what_hooks_compute_stays(text: str) -> None:
    model = Chain(nn.Linear(64, 64))
    model.middle.register_forward_hook(lambda module, inputs, output: 3 * output)
    model.middle.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    result = converted(model, text)
    assert swapped(result) == ["first", "middle", "last"] and near(result, model)
    (note,) = [note for each in result.plan.swaps if each.module == "middle" for note in each.notes]
    assert note.startswith("what hooks compute stays as captured: middle/")


@pytest.mark.parametrize("training", [True, False])
def test_a_swapped_module_has_the_mode_of_the_model(training: bool) -> None:
    result = converted(Chain(nn.Dropout(0.5)).train(training))
    result.module.train(training)
    modes = {child.training for child in result.module.modules() if is_swapped(child)}
    assert modes == {training}


@pytest.mark.parametrize("text", [TRAINING, INFERENCE, QUANTISED])
def test_a_linear_that_is_the_whole_model_is_refused_with_the_mend(text: str) -> None:
    result = converted(nn.Linear(64, 64), text)
    assert not result.plan.swaps and "wrap it in nn.Sequential" in refusals(result)[""]


@pytest.mark.parametrize("text", [TRAINING, INFERENCE, QUANTISED])
def test_one_linear_under_two_names_runs_swapped_under_both(text: str) -> None:
    model = Chain(nn.Linear(64, 64))
    model.last = model.middle
    result = converted(model, text)
    assert len(swapped(result)) == 3
    calls = [result.module.get_submodule(n.target) for n in result.module.graph.nodes if n.op == "call_module"]
    assert len(calls) == 3 and len(set(calls)) == 2 and calls[1] is calls[2] and near(result, model)
    assert set(result.module.state_dict()) == set(model.state_dict())


@pytest.mark.parametrize("text", [TRAINING, INFERENCE, QUANTISED])
def test_one_linear_under_two_parents_stays_one(text: str) -> None:
    shared = nn.Linear(64, 64)
    model = nn.Sequential(nn.Sequential(shared), nn.ReLU(), nn.Sequential(shared))
    result = converted(model, text)
    calls = [result.module.get_submodule(n.target) for n in result.module.graph.nodes if n.op == "call_module"]
    assert len(calls) == 2 and calls[0] is calls[1] and near(result, model)
    assert len({id(each) for each in result.module.parameters()}) == 2  # one weight, one bias


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, 64), nn.Linear(64, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.table(ids))
        return y


@pytest.mark.parametrize("text", [TRAINING, INFERENCE, QUANTISED])
def test_a_tied_weight_stays_tied(text: str) -> None:
    ids = torch.arange(32).reshape(2, 16)
    result = converted(Tied(), text, ids)
    assert swapped(result) == ["head"]
    module = result.module
    assert module.get_submodule("head").weight is module.get_submodule("table").weight
    assert any("weight tied to table.weight" in note for note in result.plan.swaps[0].notes)


@pytest.mark.parametrize("text", [TRAINING, INFERENCE, QUANTISED])
@pytest.mark.parametrize("wrap", ["weight_norm", "spectral_norm"])
def test_a_parametrized_weight_is_refused(wrap: str, text: str) -> None:
    model = Chain(getattr(nn.utils.parametrizations, wrap)(nn.Linear(64, 64)))
    result = converted(model, text)
    assert swapped(result) == ["first", "last"]
    assert "its weight is computed by middle.parametrizations.weight" in refusals(result)["middle"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.out = nn.MultiheadAttention(64, 4, batch_first=True), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.attn(x, x, x, need_weights=False)[0])
        return y


@pytest.mark.parametrize("text", [TRAINING, INFERENCE, QUANTISED])
def test_attention_s_own_projections_are_refused_and_counted(text: str) -> None:
    """torchao turns out_proj into a Float8Linear whose forward nobody calls."""
    result = converted(Attention(), text, torch.randn(2, 16, 64))
    assert swapped(result) == ["out"]
    told = [each.reason for each in result.plan.refusals if each.module.startswith("attn")]
    assert len(told) == 2  # in_proj, out_proj
    assert "MultiheadAttention reads attn.in_proj_weight itself" in told[0]
    assert "reads attn.out_proj.weight itself" in told[1]
    findings = [each.message for each in result.report.findings if each.rule == "PA306"]
    assert any("attn.out_proj.weight" in message for message in findings)


@pytest.mark.parametrize("text", [TRAINING, INFERENCE, QUANTISED])
def test_a_module_made_by_export_is_swapped(text: str) -> None:
    """torchao finds no nn.Linear inside one."""
    model = Chain(nn.ReLU())
    exported = torch.export.export(model, (X,), strict=False)
    result = converted(exported, text)  # type: ignore[arg-type]
    assert swapped(result) == ["first", "last"] and near(result, model)
