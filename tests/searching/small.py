"""Models whose searches can be worked out, and a device on which such small models are worth lowering.

`TOY` computes slowly and launches at once: products decide, at twice the pace in bf16 and fp16 and four times in fp8.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precision_audit import pipeline
from precision_audit.records import Hardware

TOY = Hardware(
    "toy", "a device as slow as these models are small", "9.0",
    (("fp32", 1e9), ("bf16", 2e9), ("fp16", 2e9), ("fp8", 4e9)), 1e12, 1e-9, "made up",
)  # fmt: skip
BLACKWELL = Hardware(
    "toy10", "the same with fp4", "10.0",
    (("fp32", 1e9), ("bf16", 2e9), ("fp16", 2e9), ("fp8", 4e9), ("mxfp8", 4e9), ("nvfp4", 16e9), ("mxfp4", 16e9)),
    1e12, 1e-9, "made up",
)  # fmt: skip


def use(monkeypatch: pytest.MonkeyPatch, hardware: Hardware = TOY) -> None:
    """Plans are made for this device, whichever is named."""
    monkeypatch.setattr(pipeline, "device_named", lambda name: hardware)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Scaled(nn.Module):
    """The product times a thousand leaves fp16's range (65,504), and is divided out again."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size, generator=seeded(0)))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.matmul(x, self.weight) * 100 * 10
        z: Tensor = y / 999
        return z


class Mlp(nn.Module):
    def __init__(self, width: int = 64, depth: int = 3, classes: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        y: Tensor = self.head(x)
        return y


class Attention(nn.Module):
    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        self.heads = max(1, width // 16)
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, -1).transpose(1, 2)

        mixed = nn.functional.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)))
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return y


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(width), Attention(width)
        self.second, self.mlp = nn.LayerNorm(width), Gated(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        y: Tensor = x + self.mlp(self.second(x))
        return y


def transformer(width: int = 32, depth: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(depth)), nn.LayerNorm(width))


def rows(*sizes: int, scale: float = 1.0, seed: int = 1) -> tuple[Tensor]:
    return (torch.randn(*sizes, generator=seeded(seed)) * scale,)


def states(found: Any) -> dict[str, str]:
    """What each op of a found plan got: a format, or a recipe."""
    return dict(found.plan.formats) | {swap.op: swap.recipe for swap in found.plan.swaps}
