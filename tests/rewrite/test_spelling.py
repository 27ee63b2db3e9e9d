"""Names at the top of a model that graph modules and converted ones have themselves."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.capture.spelling import respelled, restored


class Named(nn.Module):
    """A child, a parameter and a buffer of each kind of name: of a graph module, of a converted one, of neither."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.code = nn.Linear(16, 16)
        self.graph = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
        self.plans = nn.Parameter(torch.randn(16))
        self.register_buffer("meta", torch.ones(16))
        self.register_buffer("modes", torch.ones(16), persistent=False)
        self.head = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        self.meta = self.meta * 1  # written as an attribute
        h = self.graph(self.code(x)) * self.plans + self.meta + self.modes
        y: Tensor = self.head(torch.relu(h))
        return y


X = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("policy", ["bf16-inference", "bf16-training", "fp8-training-hopper"])
def test_the_state_dict_keeps_the_users_names(policy: str, share: bool) -> None:
    model = Named().train("training" in policy)
    names, parameters = list(model.state_dict()), [name for name, _ in model.named_parameters()]
    before = copy.deepcopy(model.state_dict())
    result = pa.convert(model, (X,), policy=policy, share_parameters=share)
    assert result.report.verdict.startswith("READY")  # fp8 gains nothing at this size (PA403)
    assert set(result.module.state_dict()) == set(names)
    assert [name for name, _ in result.module.named_parameters()] == parameters
    if not share:
        other = Named()
        with torch.no_grad():
            other.code.weight.mul_(2.0)
        result.module.load_state_dict(other.state_dict())
        assert torch.equal(result.module.state_dict()["code.weight"].float(), _stored(other, result.plan.folds))
    assert type(model) is Named and list(model.state_dict()) == names  # the user's model is as it was
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items() if not share)


def _stored(model: Named, folds: tuple[object, ...]) -> Tensor:
    """The weight as an inference plan stores it."""
    weight = model.code.weight.detach()
    return weight.bfloat16().float() if folds else weight


def test_gradients_and_copies() -> None:
    module = pa.convert(Named().train(), (X,), policy="bf16-training").module
    twin = copy.deepcopy(module)
    for each in (module, twin):
        each(X).sum().backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert {"code.weight", "graph.0.weight", "plans"} <= set(gradients)
    assert all(value is not None for value in gradients.values())
    outer = nn.Sequential(twin)
    assert "0.graph.0.weight" in outer.state_dict() and "0.plans" in outer.state_dict()
    assert outer.load_state_dict(outer.state_dict()).missing_keys == []


def test_saved_and_loaded(tmp_path: Path) -> None:
    result = pa.convert(Named().train(), (X,), policy="fp8-training-hopper")
    pa.save(result.module, result.plan, tmp_path / "out", (X,))
    loaded = pa.load(tmp_path / "out", Named())
    assert set(loaded.state_dict()) == set(Named().state_dict())
    assert torch.equal(loaded.eval()(X), result.module.eval()(X))


def test_a_model_without_such_names_is_taken_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert respelled(model) == (model, {})


def test_another_name_is_one_that_is_free() -> None:
    model = nn.Module()
    model.code, model.code_ = nn.Linear(2, 2), nn.Linear(2, 2)
    found, names = respelled(model)
    assert names == {"code__": "code"} and list(found._modules) == ["code__", "code_"]
    assert found.code is model.code and restored("code__.weight", names) == "code.weight"
    assert restored("head.code__", names) == "head.code__"
