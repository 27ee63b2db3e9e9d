"""What master weights keep: other parameters, the model, the user's values, a saved state; and what they refuse."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler

import precision_audit as pa
from tests.master_weights.in_half import (
    OPTIMIZERS,
    OPTIONS,
    adam,
    batch,
    bits,
    everything,
    make_net,
    refused,
    train,
    wrapped,
)

BF16, FP16 = torch.bfloat16, torch.float16


# --- what is in the groups


def test_fp32_and_fp64_parameters_stay_themselves() -> None:
    parameters = [nn.Parameter(torch.ones(2, dtype=each)) for each in (FP16, torch.float32, torch.float64, BF16)]
    optimizer = pa.MasterWeights(torch.optim.SGD(parameters, lr=1.0), loss_scale=8.0)
    masters = optimizer.master_params()
    assert [each.dtype for each in masters] == [torch.float32, torch.float32, torch.float64, torch.float32]
    assert masters[1] is parameters[1] and masters[2] is parameters[2]
    optimizer.scale(sum((each.double().sum() for each in parameters), torch.zeros(()))).backward()
    optimizer.step()
    assert all(each.tolist() == [0, 0] for each in parameters)
    assert [each.dtype for each in parameters] == [FP16, torch.float32, torch.float64, BF16]


def test_a_model_without_half_parameters_trains_as_before() -> None:
    nets = [make_net(), make_net()]
    train(nets[0], pa.MasterWeights(adam(nets[0].parameters()), loss_scale=2.0), 5)
    plain = adam(nets[1].parameters())
    for step in range(5):
        x, target = batch(step)
        plain.zero_grad()
        nn.functional.mse_loss(nets[1](x), target).backward()
        plain.step()
    assert bits(nets[0].parameters()) == bits(nets[1].parameters())


def test_a_tied_parameter_has_one_master() -> None:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).to(BF16)
    net[1].weight = net[0].weight
    optimizer = pa.MasterWeights(torch.optim.SGD(net.parameters(), lr=1.0))
    assert len(optimizer.master_params()) == 1
    net(torch.ones(1, 4, dtype=BF16)).sum().backward()
    optimizer.step()
    assert net[1].weight is net[0].weight


def test_frozen_parameters_stay_until_they_are_not() -> None:
    net = make_net().to(FP16)
    net[0].requires_grad_(False)
    optimizer = pa.MasterWeights(adam(net.parameters()))
    before = bits(net[0].parameters())
    train(net, optimizer, 2)
    assert bits(net[0].parameters()) == before
    net[0].requires_grad_(True)
    train(net, optimizer, 2)
    assert bits(net[0].parameters()) != before


def test_state_that_exists_moves_to_the_masters_in_fp32() -> None:
    net = make_net().to(BF16)
    plain = adam(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    plain.step()
    expected = [plain.state[each]["exp_avg"].float() for each in net.parameters()]
    optimizer = pa.MasterWeights(plain)
    states = [optimizer.state[each] for each in optimizer.master_params()]
    assert len(optimizer.state) == 4 and all(state["step"].item() == 1 for state in states)
    for state, average in zip(states, expected, strict=True):
        assert state["exp_avg"].dtype == torch.float32 and torch.equal(state["exp_avg"], average)


def test_construction_leaves_the_model_alone() -> None:
    net = make_net().to(FP16)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    before = [(id(each), each.dtype, each._version, each.data_ptr()) for each in net.parameters()]
    keys, values = list(net[0].weight.__dict__), bits(net.parameters())
    optimizer = pa.MasterWeights(adam(net.parameters()), loss_scale=2.0)
    optimizer.unscale_()
    assert [(id(each), each.dtype, each._version, each.data_ptr()) for each in net.parameters()] == before
    assert list(net[0].weight.__dict__) == keys and bits(net.parameters()) == values
    assert net[0].weight.grad.eq(1).all()


@pytest.mark.parametrize("by_data", [True, False])
def test_what_the_user_sets_in_the_model_wins(by_data: bool) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 1.0, 4.0], dtype=BF16))
    optimizer = pa.MasterWeights(torch.optim.SGD([weight], lr=1e-4))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    with torch.no_grad():
        (weight.data if by_data else weight)[2].clamp_(max=2.0)
    optimizer.step()
    rest = torch.tensor([1.0, 1.0, 2.0]) - 1e-4
    assert torch.equal(optimizer.master_params()[0], torch.cat([rest[:2] - 1e-4, rest[2:]]))


# --- schedulers and hooks


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
        lr_scheduler.ReduceLROnPlateau,
    ],
)
def test_schedulers_take_it(schedule: Callable[[Any], Any], recwarn: pytest.WarningsRecorder) -> None:
    net, optimizer = wrapped(make=OPTIMIZERS["momentum"])
    plan = schedule(optimizer)
    train(net, optimizer, 1)
    plan.step(*([1.0] if isinstance(plan, lr_scheduler.ReduceLROnPlateau) else []))
    assert not [each for each in recwarn if "lr_scheduler" in str(each.message)]


def test_hooks_of_steps_and_gradients_are_called() -> None:
    net, optimizer = wrapped()
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.register_state_dict_post_hook(lambda *_: called.append("saved"))
    net[0].weight.register_post_accumulate_grad_hook(lambda _: called.append("gradient"))
    train(net, optimizer, 1)
    optimizer.state_dict()
    assert called == ["gradient", "before", "after", "saved"]


# --- saving


@pytest.mark.parametrize("name", [*OPTIMIZERS, *OPTIONS])
@pytest.mark.parametrize("model_first", [True, False])
def test_a_saved_state_goes_on_bit_for_bit(name: str, model_first: bool) -> None:
    make = (OPTIMIZERS | OPTIONS)[name]
    options: dict[str, Any] = {"loss_scale": "dynamic", "init_scale": 256.0, "growth_interval": 4}
    net, optimizer = wrapped(FP16, make, **options)
    train(net, optimizer, 7)
    saved = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=True)
    other, again = wrapped(FP16, make, **options)
    for part, state in [(other, "net"), (again, "optimizer")][:: 1 if model_first else -1]:
        part.load_state_dict(loaded[state])
    assert again.get_scale() == 512.0
    for each, module in ((optimizer, net), (again, other)):
        train(module, each, 6, start=7)
    assert everything(other, again) == everything(net, optimizer)
    assert again.get_scale() == optimizer.get_scale() == 2048.0  # 13 steps: doubled thrice


def test_loading_leaves_the_model_alone() -> None:
    net, optimizer = wrapped(BF16)
    train(net, optimizer, 3)
    other, again = wrapped(BF16)
    before = bits(other.parameters())
    again.load_state_dict(optimizer.state_dict())
    again.step()  # no gradients
    assert bits(other.parameters()) == before == bits(each.bfloat16() for each in again.master_params())


def _without(state: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in keys}


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda state: _without(state, "masters", "loss_scale"), "a plain optimizer's state"),
        (lambda state: _without(state, "masters"), "'masters' is missing"),
        (lambda state: _without(state, "param_groups"), "'param_groups' is missing"),
        (lambda state: {**state, "masters": _without(state["masters"], 2)}, "needed for [0, 1, 2, 3]"),
        (lambda state: {**state, "masters": {**state["masters"], 1: torch.zeros(3)}}, "parameter 1 of group 0"),
        (
            lambda state: {**state, "masters": {key: each.half() for key, each in state["masters"].items()}},
            "is float16 of shape",
        ),
        (lambda state: {**state, "loss_scale": _without(state["loss_scale"], "scale")}, "the loss scale lacks 'scale'"),
        (lambda state: {**state, "loss_scale": {**state["loss_scale"], "dynamic": True}}, 'loss_scale="dynamic"'),
        (lambda state: {**state, "param_groups": state["param_groups"] * 2}, "different number of parameter groups"),
        (lambda state: [state], "expected a dict"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(spoil: Callable[[Any], Any], said: str) -> None:
    net, optimizer = wrapped(loss_scale=2.0)
    train(net, optimizer, 2)
    state = copy.deepcopy(optimizer.state_dict())
    train(net, optimizer, 2)
    before = everything(net, optimizer)
    refused(lambda: optimizer.load_state_dict(spoil(state)), said)
    assert everything(net, optimizer) == before


# --- refusals


def test_refused_in_steps() -> None:
    net, optimizer = wrapped(loss_scale=4.0)
    x, target = batch(0)

    def backward() -> None:
        optimizer.scale(nn.functional.mse_loss(net(x.half()).float(), target)).backward()

    refused(lambda: optimizer.step(lambda: 0.0), "takes no closure")
    refused(lambda: optimizer.scale(1.0), "expected a loss in a float format, got float")
    refused(lambda: optimizer.scale(torch.ones(1, dtype=torch.int64)), "got a int64 tensor")
    refused(lambda: copy.deepcopy(optimizer), "save state_dict()")
    backward()
    optimizer.unscale_()
    refused(optimizer.unscale_, "called twice")
    clip_grad_norm_(net.parameters(), 1e-3)  # the wrong parameters
    refused(optimizer.step, "clip optimizer.master_params()")
    optimizer.zero_grad()
    backward()
    clip_grad_norm_(optimizer.master_params(), 1e-3)  # too early
    refused(optimizer.step, "before unscale_()")
    refused(optimizer.unscale_, "before unscale_()")
    optimizer.zero_grad()
    backward()
    optimizer.unscale_()
    backward()  # too late
    refused(optimizer.step, "after the last backward")


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("of_model", [True, False])
def test_an_abandoned_step_leaves_nothing_behind(scale: float, of_model: bool) -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=FP16))
    optimizer = pa.MasterWeights(torch.optim.SGD([weight], lr=1.0), loss_scale=scale)
    optimizer.scale(weight.float().sum() * 8).backward()
    optimizer.unscale_()
    clip_grad_norm_(optimizer.master_params(), 1.0)
    if of_model:
        weight.grad = None
    else:
        optimizer.zero_grad()
    optimizer.scale(weight.float().sum() * 2).backward()
    optimizer.step()
    assert weight.item() == -2.0


def test_refused_with_gradscaler() -> None:
    net, optimizer = wrapped()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    x, target = batch(0)
    scaler.scale(nn.functional.mse_loss(net(x.half()).float(), target)).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(net.parameters(), 1e-3)
    refused(lambda: optimizer.param_groups, "clip optimizer.master_params()")  # GradScaler's division is noticed
    refused(lambda: scaler.step(optimizer), "clip optimizer.master_params()")
    net, optimizer = wrapped(loss_scale=2.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(nn.functional.mse_loss(net(x.half()).float(), target)).backward()
    refused(lambda: scaler.step(optimizer), "use one")
    assert not hasattr(optimizer, "found_inf") and not hasattr(optimizer, "grad_scale")


def test_refused_at_construction() -> None:
    net = make_net().to(FP16)
    refused(lambda: pa.MasterWeights(net), "expected a torch.optim.Optimizer, got Sequential")
    refused(lambda: pa.MasterWeights(torch.optim.LBFGS(net.parameters())), "LBFGS calls a closure")
    refused(lambda: pa.MasterWeights(pa.MasterWeights(adam(net.parameters()))), "wrapped already")
    plain = adam([net[0].weight, nn.Parameter(net[0].weight.data)])
    refused(lambda: pa.MasterWeights(plain), "parameter 1 of group 0, shape (16, 8) shares its memory")
    assert plain.param_groups[0]["params"][0] is net[0].weight  # left as it was
    named = adam([("first", net[0].weight), ("second", nn.Parameter(net[0].weight.data))])
    refused(lambda: pa.MasterWeights(named), "parameter second shares its memory with parameter first")
    _, optimizer = wrapped()
    refused(lambda: optimizer.add_param_group({"params": optimizer._masters[0].low}), "has a master")
    assert len(optimizer.param_groups) == 1
    weight = nn.Parameter(torch.ones(1, dtype=FP16))
    static = pa.MasterWeights(adam([weight]), loss_scale=2.0**17)
    refused(lambda: static.scale(weight.sum()), "compute the loss in fp32")


def test_a_model_cast_afterwards_is_refused() -> None:
    net, optimizer = wrapped()
    net.bfloat16()
    refused(optimizer.step, "parameter 0 of group 0, shape (16, 8) is bfloat16 on cpu, and was float16 on cpu")
