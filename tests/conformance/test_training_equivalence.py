"""Training in a lower format ends where training in fp32 ends, as closely as fp32 under another seed does.

Two networks are trained for 300 steps of AdamW in fp32 under three seeds (of initialisation and data), and under each
training policy with the first of them. The figure is the mean loss of the last 30 steps. Criterion: a policy's figure
differs from that of fp32 under the same seed by no more than the three fp32 figures differ among themselves.

The criterion must be able to fail: the same network with bf16 parameters, whose optimizer makes steps of 2e-4 where
weights of 0.1 are 5e-4 apart, loses most of its updates and ends outside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precision_audit as pa
from tests.conformance.trained import NETWORKS

STEPS, LAST, SEEDS, RATE = 300, 30, (0, 1, 2), 2e-4
POLICIES = (
    *("fp16-training", "bf16-training", "fp8-training-hopper"),
    *("amp-cpu-bf16", "amp-cpu-fp16", "amp-cuda-bf16", "amp-cuda-fp16"),
)
SWAPPED = {"convnet": 1, "transformer": 5}  # linears with sizes that are multiples of 16

pytestmark = pytest.mark.slow


def trained(network: str, seed: int, change: Callable[[nn.Module], nn.Module], scaled: bool = False) -> float:
    """Mean loss of the last steps, in nats, of the network that `change` makes of the fresh one."""
    build, batch = NETWORKS[network]
    torch.manual_seed(seed)
    model = change(build()).train()
    generator = torch.Generator().manual_seed(100 + seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    losses = []
    for _ in range(STEPS):
        inputs, wanted = batch(generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).float(), wanted)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return sum(losses[-LAST:]) / LAST


@cache
def in_fp32(network: str) -> tuple[float, ...]:
    return tuple(trained(network, seed, lambda model: model) for seed in SEEDS)


def within_the_spread(figure: float, network: str) -> bool:
    return abs(figure - in_fp32(network)[0]) <= max(in_fp32(network)) - min(in_fp32(network))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_training_policy_ends_within_the_spread_of_fp32(network: str, policy: str) -> None:
    made: list[pa.Conversion] = []

    def convert(model: nn.Module) -> nn.Module:
        example, _ = NETWORKS[network][1](torch.Generator().manual_seed(1))
        made.append(pa.convert(model, (example,), policy=policy, verify=False))
        return made[0].module

    figure = trained(network, 0, convert, scaled="fp16" in policy)
    assert within_the_spread(figure, network), f"{figure} is not near {in_fp32(network)}"
    assert figure != in_fp32(network)[0]  # something was lowered
    assert len(made[0].plan.swaps) == (SWAPPED[network] if "fp8" in policy else 0)


@pytest.mark.parametrize("network", NETWORKS)
def test_fp32_learns_under_every_seed(network: str) -> None:
    """A loss that nothing lowers would make the criterion empty."""
    guess = torch.tensor(float({"convnet": 4, "transformer": 16}[network])).log()
    assert all(figure < 0.7 * guess for figure in in_fp32(network))


@pytest.mark.parametrize("network", NETWORKS)
def test_lost_updates_end_outside_the_spread(network: str) -> None:
    class InBf16(nn.Module):
        """The network in bf16, given what it expects."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model.bfloat16()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.model(inputs.bfloat16() if inputs.is_floating_point() else inputs)
            return scores

    figure = trained(network, 0, InBf16)
    assert figure > max(in_fp32(network)) and not within_the_spread(figure, network)
