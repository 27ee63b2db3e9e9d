"""The zoo is what it says: seeded, never constant, formats and gradients as listed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests import models
from tests.models import (
    MODELS,
    NO_GRADIENT,
    NOT_FP32,
    assert_not_constant,
    build,
    constant,
    loss_of,
    randomise,
    tensors,
)


@pytest.mark.parametrize("name", MODELS)
def test_same_seed_gives_same_model_and_another_seed_another(name: str) -> None:
    def outputs(seed: int) -> list[Tensor]:
        module, args, kwargs = build(name, seed)
        with torch.no_grad():
            return list(tensors(module(*args, **kwargs)))

    first, again, other = outputs(3), outputs(3), outputs(4)
    assert all(torch.equal(left, right) for left, right in zip(first, again, strict=True))
    assert any(not torch.equal(left, right) for left, right in zip(first, other, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_left_constant_and_every_parameter_counts(name: str) -> None:
    module, args, kwargs = build(name)
    left = [path for path, parameter in module.named_parameters() if constant(parameter)]
    assert left == []
    loss = loss_of(module(*args, **kwargs))
    assert (loss is None) == (name in NO_GRADIENT)
    if loss is None:
        return
    loss.backward()
    idle = [path for path, one in module.named_parameters() if one.grad is None or not (one.grad != 0).any()]
    assert idle == [], "the output does not depend on these parameters"


@pytest.mark.parametrize("name", MODELS)
def test_formats_are_fp32_but_where_listed(name: str) -> None:
    module, args, _ = build(name)
    floats = [tensor for tensor in (*module.state_dict().values(), *tensors(args)) if tensor.is_floating_point()]
    assert (any(tensor.dtype != torch.float32 for tensor in floats)) == (name in NOT_FP32)


def test_randomise_fills_what_initialisation_leaves_constant() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.Linear(8, 2).half())
    nn.init.zeros_(module[3].weight)
    untouched = module[0].weight.clone()
    randomise(module, 0)
    assert torch.equal(module[0].weight, untouched)
    assert module[1].num_batches_tracked == 0
    assert (module[1].running_var >= 0.5).all() and module[1].running_var.std() > 0
    assert module[1].running_mean.abs().max() > 0
    assert module[3].weight.dtype == torch.float16 and module[3].weight.abs().max() > 0
    for norm in (module[1], module[2]):  # around the value they had: one for gains, zero for shifts
        assert abs(norm.weight.mean().item() - 1) < 0.5 and norm.weight.std() > 0
        assert abs(norm.bias.mean().item()) < 0.5 and norm.bias.std() > 0


def test_randomise_keeps_ties() -> None:
    module, _, _ = build("tied_two_names")
    assert module.second.weight is module.first.weight and module.second.bias is module.first.bias


@pytest.mark.parametrize(
    "output, complaint",
    [
        (torch.zeros(3, 4), "constant"),
        (torch.tensor([[1.0, 2.0], [1.0, 2.0]]), "rows"),
        ((torch.arange(4.0), torch.tensor(float("nan"))), "not finite"),
        ({"scores": torch.zeros(0, 4)}, "no tensor"),
    ],
)
def test_a_constant_output_is_refused(output: object, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert_not_constant(output)


def test_tensors_looks_into_unregistered_dataclasses() -> None:
    prediction = models.zoo_networks.Prediction(torch.zeros(1), torch.ones(2))
    assert [tensor.numel() for tensor in tensors((prediction, [torch.zeros(3)]))] == [1, 2, 3]


def test_loss_weighs_every_element_differently() -> None:
    output = torch.randn(3, 5, requires_grad=True)
    loss = loss_of((output, output.argmax(), torch.zeros(0, requires_grad=True)))
    assert loss is not None
    loss.backward()
    assert output.grad is not None and len(output.grad.unique()) == 15
