"""Small models of what a plan meets on a user's own model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precision_audit as pa


class Net(nn.Module):
    """Linears of every kind that a swap has an opinion on; 64 rows in."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.again = nn.Linear(64, 64)  # called twice
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)  # its out_proj is never called
        self.scaled = Scaled(64, 64)  # a subclass
        self.odd = nn.Linear(64, 10)  # N is not a multiple of 16
        self.norm = nn.LayerNorm(10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(F.relu(self.again(F.relu(self.first(x)))))
        rows = x.unsqueeze(0)
        x = x + self.attention(rows, rows, rows, need_weights=False)[0].squeeze(0)
        return self.norm(self.odd(self.scaled(x)))


class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 0.5


class Holder(nn.Module):
    """The same linear under two parents."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(32, 32)
        self.left = nn.Sequential(shared, nn.ReLU())
        self.right = nn.Sequential(shared, nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


class Passing(nn.Module):
    """Gives back what it was given, beside what it made: the graph does not show that the stream went through it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.relu(self.inner(x))


class Streams(nn.Module):
    """A product, which takes one format, of the stream with what went through a low module."""

    def __init__(self) -> None:
        super().__init__()
        self.passing = Passing()

    def forward(self, x: Tensor) -> Tensor:
        same, made = self.passing(x)
        return torch.dot(x.flatten(), same.flatten()) + made


class TwoNames(nn.Module):
    """One linear under two names of one parent, both called."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(32, 32)
        self.other = self.one

    def forward(self, x: Tensor) -> Tensor:
        return self.other(torch.relu(self.one(x)))


def seeded(kind: type[nn.Module], *args: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args)


def rows(count: int = 64, width: int = 32) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1))


def converted(model: nn.Module, policy: str, *args: Any, **kwargs: Any) -> pa.Conversion:
    return pa.convert(model, args or (rows(),), kwargs, policy=policy, verify=False, device="h100")
