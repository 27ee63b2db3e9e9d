"""A linear that computes as a quantised one would, for swaps whose own module cannot be built here.

Takes a linear and the `Swap`; gives a module over the same parameters whose forward is the emulated product. It proves
what the swap does to the numbers and nothing about time, and is never written to a file.
"""

from __future__ import annotations

import torch
from torch import nn

from precision_audit import backends
from precision_audit.quantise import product
from precision_audit.records import Swap
from precision_audit.searching.alternatives import BUILDABLE, scheme_of


class EmulatedLinear(nn.Module):
    """x · weight transposed + bias, input and weight quantised by `scheme`; the output has the input's format."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, scheme: str) -> None:
        super().__init__()
        self.scheme = scheme
        self.weight, self.bias = weight, bias  # parameters, registered as such

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return product(x, self.weight, self.bias, self.scheme).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, scheme={self.scheme}, emulated"


def build(linear: nn.Linear, swap: Swap) -> nn.Module:
    """The backend's module where there is one, else the emulation."""
    if swap.backend in BUILDABLE:
        return backends.get(swap.backend).build(linear, swap)
    return EmulatedLinear(linear.weight, linear.bias, scheme_of(swap)).train(linear.training)
