"""A net of two linears, its batches, optimizers and a training loop, for the tests of master weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa

Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
}
OPTIONS: dict[str, Make] = {
    "sgd-foreach": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, foreach=True),
    "sgd-fused": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, fused=True),
    "adam-foreach": lambda params: torch.optim.Adam(params, lr=1e-3, foreach=True),
    "adam-fused": lambda params: torch.optim.Adam(params, lr=1e-3, fused=True),
    "adamw-amsgrad": lambda params: torch.optim.AdamW(params, lr=1e-3, amsgrad=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2),  # its state exists from the start
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.9, centered=True),
}


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs [12, 8] and targets [12, 4] in fp32, others in each step."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 8, generator=generator), torch.randn(12, 4, generator=generator)


def train(
    net: nn.Module, optimizer: pa.MasterWeights, steps: int, clip: float | None = None, *, start: int = 0
) -> None:
    dtype = next(net.parameters()).dtype
    for step in range(start, start + steps):
        x, target = batch(step)
        optimizer.zero_grad()
        optimizer.scale(nn.functional.mse_loss(net(x.to(dtype)).float(), target)).backward()
        if clip is not None:
            optimizer.unscale_()
            nn.utils.clip_grad_norm_(optimizer.master_params(), clip)
        optimizer.step()


def bits(tensors: Iterable[Tensor]) -> list[bytes]:
    return [each.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for each in tensors]


def everything(net: nn.Module, optimizer: pa.MasterWeights) -> tuple[list[bytes], ...]:
    """Parameters, masters and optimizer state, as bytes."""
    state = optimizer.state_dict()
    tensors: list[Tensor] = [each for one in state["state"].values() for each in one.values() if torch.is_tensor(each)]
    return bits(net.parameters()), bits(state["masters"].values()), bits(tensors)


def refused(act: Callable[[], Any], said: str) -> None:
    with pytest.raises(pa.InputError) as error:
        act()
    assert said in str(error.value) and "\n" not in str(error.value)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def wrapped(
    dtype: torch.dtype = torch.float16, make: Make = adam, **options: Any
) -> tuple[nn.Module, pa.MasterWeights]:
    net = make_net().to(dtype)
    return net, pa.MasterWeights(make(net.parameters()), **options)
