"""Steps with master weights: against an fp32 conversion, against GradScaler, and against arithmetic."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler

import precision_audit as pa
from tests.master_weights.in_half import (
    OPTIMIZERS,
    OPTIONS,
    Make,
    batch,
    bits,
    everything,
    make_net,
    refused,
    train,
    wrapped,
)

BF16, FP16 = torch.bfloat16, torch.float16


# --- the same numbers as an fp32 model that is converted


@pytest.mark.parametrize("make", [pytest.param(each, id=name) for name, each in (OPTIMIZERS | OPTIONS).items()])
@pytest.mark.parametrize("dtype, policy, scale", [(BF16, "bf16-training", 1.0), (FP16, "fp16-training", 128.0)])
def test_a_hundred_steps_equal_the_conversion(make: Make, dtype: torch.dtype, policy: str, scale: float) -> None:
    net = make_net().to(dtype)
    start = make_net()
    start.load_state_dict(net.state_dict())  # fp32 parameters of the same value
    converted = pa.convert(start, (batch(0)[0],), policy=policy, verify=False)
    optimizer = pa.MasterWeights(make(net.parameters()), loss_scale=scale)
    plain, parameters = make(converted.module.parameters()), list(converted.module.parameters())
    for step in range(100):
        x, target = batch(step)
        for module, trained, given in ((net, optimizer, x.to(dtype)), (converted.module, plain, x)):
            trained.zero_grad()
            (nn.functional.mse_loss(module(given).float(), target) * scale).backward()
        for parameter in parameters:
            parameter.grad.div_(scale)
        optimizer.step()
        plain.step()
    assert bits(optimizer.master_params()) == bits(parameters)
    assert bits(net.parameters()) == bits(each.to(dtype) for each in parameters)
    assert bits(net.parameters()) != bits(make_net().to(dtype).parameters())  # it moved


@pytest.mark.parametrize("scale", [128.0, 100.0])  # 100: the quotient is rounded, in both alike
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_gradscaler_gives_the_same(dtype: torch.dtype, clip: float | None, scale: float) -> None:
    net, optimizer = wrapped(dtype, loss_scale=scale)
    train(net, optimizer, 20, clip)
    other, within = wrapped(dtype)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for step in range(20):
        x, target = batch(step)
        within.zero_grad()
        scaler.scale(nn.functional.mse_loss(other(x.to(dtype)).float(), target)).backward()
        if clip is not None:
            scaler.unscale_(within)
            clip_grad_norm_(within.master_params(), clip)
        scaler.step(within)
        scaler.update()
    assert bits(within.master_params()) == bits(optimizer.master_params())
    assert bits(other.parameters()) == bits(net.parameters())


@pytest.mark.parametrize("explicit", [True, False])
def test_gradscaler_skips_and_backs_off(explicit: bool) -> None:
    net, optimizer = wrapped()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    train(net, optimizer, 3)
    before = everything(net, optimizer)
    x, target = batch(0)
    scaler.scale(nn.functional.mse_loss(net(x.half()).float(), target * 1e4)).backward()
    if explicit:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert everything(net, optimizer) == before
    assert (scaler.get_scale(), optimizer.skipped_steps) == (2.0**15, 1)
    net.zero_grad(set_to_none=False)  # the next step begins without the optimizer being told
    scaler.scale(nn.functional.mse_loss(net(x.half()).float(), target)).backward()
    scaler.step(optimizer)
    assert everything(net, optimizer) != before


def test_a_disabled_gradscaler_is_no_matter() -> None:
    net, optimizer = wrapped()
    train(net, optimizer, 5)
    other, within = wrapped()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for step in range(5):
        x, target = batch(step)
        within.zero_grad()
        scaler.scale(nn.functional.mse_loss(other(x.half()).float(), target)).backward()
        scaler.unscale_(within)
        scaler.step(within)
        scaler.update()
    assert bits(other.parameters()) == bits(net.parameters())


# --- what masters are for


@pytest.mark.parametrize(
    "dtype, update, steps",
    [
        # Down from 1 the next number is 1 - 2^-8 in bf16 and 1 - 2^-11 in fp16; half-way, ties go to the even 1.
        (BF16, 2.0**-14, 2**5 + 1),  # more than 2^-9 / 2^-14
        (FP16, 2.0**-16, 2**4 + 1),  # more than 2^-12 / 2^-16
        (BF16, 1e-4, math.ceil(2.0**-9 / 1e-4)),  # 19.53: the 20th
    ],
)
def test_small_updates_add_up(dtype: torch.dtype, update: float, steps: int) -> None:
    plain = nn.Parameter(torch.ones(1, dtype=dtype))
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    alone, optimizer = torch.optim.SGD([plain], lr=update), pa.MasterWeights(torch.optim.SGD([weight], lr=update))
    for step in range(1, steps + 1):
        plain.grad, weight.grad = torch.ones_like(plain), torch.ones_like(weight)
        alone.step()
        optimizer.step()
        assert (weight.item() == 1) == (step < steps)
    assert plain.item() == 1
    assert weight.item() == 1 - torch.finfo(dtype).eps / 2


def test_scale_keeps_what_fp16_would_lose() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=FP16))
    optimizer = pa.MasterWeights(torch.optim.SGD([weight], lr=1.0), loss_scale=128)
    (weight.float() * 2.0**-26).sum().backward()  # below half of 2^-24
    assert weight.grad is not None and weight.grad.item() == 0
    optimizer.zero_grad()
    optimizer.scale((weight.float() * 2.0**-26).sum()).backward()
    optimizer.step()
    assert optimizer.master_params()[0].item() == -(2.0**-26)


def test_scale_multiplies_in_fp32() -> None:
    _, optimizer = wrapped(loss_scale=4096.0)
    scaled = optimizer.scale(torch.tensor(100.0, dtype=FP16))
    assert (scaled.item(), scaled.dtype) == (409600.0, torch.float32)
    assert optimizer.scale(torch.tensor(1.0, dtype=torch.float64)).dtype == torch.float64


# --- steps


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("scale", [1.0, 64.0, "dynamic"])
def test_inf_and_nan_change_nothing(bad: float, unscale: bool, scale: float | str) -> None:
    net, optimizer = wrapped(loss_scale=scale, init_scale=1024.0)
    train(net, optimizer, 3)
    before = everything(net, optimizer)
    optimizer.zero_grad()
    net[0].weight.grad = torch.zeros_like(net[0].weight)
    net[2].bias.grad = torch.zeros_like(net[2].bias)
    net[2].bias.grad[1] = bad
    if unscale:
        optimizer.unscale_()
    optimizer.step()
    assert everything(net, optimizer) == before
    assert optimizer.skipped_steps == 1
    train(net, optimizer, 1)
    assert everything(net, optimizer) != before


def test_scale_falls_and_grows_at_the_right_step() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=FP16))
    make = torch.optim.SGD([weight], lr=0.0)
    optimizer = pa.MasterWeights(make, loss_scale="dynamic", init_scale=1024.0, growth_interval=3)
    scales = []
    for bad in (0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0):
        weight.grad = torch.full_like(weight, math.inf if bad else 1.0)
        optimizer.step()
        scales.append(optimizer.get_scale())
    assert scales == [1024, 1024, 512, 512, 512, 1024, 1024, 512, 256, 256, 256, 512]


def test_clipping_sees_unscaled_gradients() -> None:
    """Gradients 3 and 4 of norm 5, clipped to 1: 0.6 and 0.8, whatever the scale."""
    for scale in (1.0, 128.0):
        weights = [nn.Parameter(torch.zeros(1, dtype=FP16)) for _ in range(2)]
        optimizer = pa.MasterWeights(torch.optim.SGD(weights, lr=1.0), loss_scale=scale)
        optimizer.scale(3.0 * weights[0].float() + 4.0 * weights[1].float()).backward()
        optimizer.unscale_()
        assert clip_grad_norm_(optimizer.master_params(), 1.0).item() == 5.0
        optimizer.step()
        assert [each.item() for each in optimizer.master_params()] == pytest.approx([-0.6, -0.8], rel=1e-5)
        assert [each.grad.item() for each in weights] == [3.0 * scale, 4.0 * scale]  # as backward left them


def test_clipping_needs_no_unscale_without_a_scale() -> None:
    net, optimizer = wrapped(BF16)
    other, explicit = wrapped(BF16)
    for step in range(5):
        for module, each in ((net, optimizer), (other, explicit)):
            x, target = batch(step)
            each.zero_grad()
            nn.functional.mse_loss(module(x.bfloat16()).float(), target).backward()
            if each is explicit:
                each.unscale_()
            clip_grad_norm_(each.master_params(), 0.01)
            each.step()
    assert bits(net.parameters()) == bits(other.parameters())
    unclipped, plain = wrapped(BF16)
    train(unclipped, plain, 5)
    assert bits(net.parameters()) != bits(unclipped.parameters())


@pytest.mark.parametrize("scale", [1.0, 128.0])
def test_a_second_step_applies_the_same_gradient(scale: float) -> None:
    """As a plain optimizer does; divided once, in parameters with a master and without."""
    half, full = nn.Parameter(torch.zeros(1, dtype=FP16)), nn.Parameter(torch.zeros(1))
    optimizer = pa.MasterWeights(torch.optim.SGD([half, full], lr=1.0), loss_scale=scale)
    optimizer.scale(half.float() + full).backward()
    for step in (1, 2, 3):
        optimizer.step()
        assert [each.item() for each in optimizer.master_params()] == [-step, -step]


@pytest.mark.parametrize("reads", [True, False])
def test_micro_batches_accumulate_in_the_model(reads: bool) -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=BF16))
    optimizer = pa.MasterWeights(torch.optim.SGD([weight], lr=1.0), loss_scale=2.0)
    for _ in range(3):
        optimizer.scale(weight.float().sum()).backward()
        if reads:
            assert optimizer.param_groups[0]["lr"] == 1.0  # as a progress bar would
    optimizer.step()
    assert optimizer.master_params()[0].item() == -3.0


def test_step_without_backward_and_without_gradient() -> None:
    net, optimizer = wrapped()
    before = everything(net, optimizer)
    optimizer.step()
    assert everything(net, optimizer) == before
    unused = nn.Parameter(torch.ones(2, dtype=FP16))
    optimizer.add_param_group({"params": [unused]})
    train(net, optimizer, 1)
    assert unused.tolist() == [1, 1] and unused.grad is None
    assert bits(net.parameters()) != before[0]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("of_model", [True, False])
def test_zero_grad(set_to_none: bool, of_model: bool) -> None:
    net, optimizer = wrapped(loss_scale=4.0)
    train(net, optimizer, 1)
    (net if of_model else optimizer).zero_grad(set_to_none=set_to_none)
    for parameter in net.parameters():
        assert parameter.grad is None if set_to_none else parameter.grad.abs().sum() == 0
    momentum = copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.step()  # zeros are a gradient: Adam's averages decay; none is not
    after = optimizer.state_dict()["state"]
    torch.testing.assert_close(after[0]["exp_avg"], momentum[0]["exp_avg"] * (1 if set_to_none else 0.9))
    assert after[0]["step"] - momentum[0]["step"] == (0 if set_to_none else 1)
    train(net, optimizer, 1)


def test_groups_have_their_own_options_and_schedulers_move_them() -> None:
    net = make_net().to(BF16)
    groups = [{"params": net[0].parameters(), "lr": 0.5}, {"params": net[2].parameters(), "lr": 0.25}]
    optimizer = pa.MasterWeights(torch.optim.SGD(groups, lr=1.0))
    schedule = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    start = [each.detach().clone() for each in optimizer.master_params()]
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.125]
    optimizer.step()
    for index, (before, after) in enumerate(zip(start, optimizer.master_params(), strict=True)):
        lr = 0.5 if index < 2 else 0.25
        assert torch.equal(after, (before - lr) - lr / 2)


@pytest.mark.parametrize("dtype", [FP16, torch.float32])
def test_sparse_gradients_are_refused(dtype: torch.dtype) -> None:
    table = nn.Embedding(4, 2, sparse=True).to(dtype)
    optimizer = pa.MasterWeights(torch.optim.SGD(table.parameters(), lr=1.0))
    table(torch.tensor([1])).sum().backward()
    before = bits(table.parameters())
    refused(optimizer.step, "sparse=False")
    assert bits(table.parameters()) == before
