"""A model with everything that TransformerEngine's fused modules could take, and what they could not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Blocks(nn.Module):
    """An MLP of modules, a gated one with its activation in forward, two linears that read one norm, one that reads a
    norm alone, and a linear without a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1 = nn.LayerNorm(64), nn.Linear(64, 128)
        self.act, self.fc2 = nn.GELU(approximate="tanh"), nn.Linear(128, 64)
        self.norm2 = nn.RMSNorm(64, eps=1e-6)
        self.gate_up, self.down = nn.Linear(64, 256, bias=False), nn.Linear(128, 64, bias=False)
        self.norm3, self.q, self.k = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm4, self.out = nn.LayerNorm(64), nn.Linear(64, 64)
        self.tail = nn.Sequential(nn.Linear(64, 64), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.fc2(self.act(self.fc1(self.norm(x))))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        x = x + self.down(F.silu(gate) * up)
        y = self.norm3(x)
        x = x + self.out(self.norm4(torch.tanh(self.q(y)) * self.k(y)))
        made: Tensor = self.tail(x)
        return made
