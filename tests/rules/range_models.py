"""Small models that leave fp16's range in many spellings, and their harmless neighbours.

`BAD`, filled by the files `range_bad_*`, maps a name to the rules that may report it and the model; the guilty line
carries `# guilty`. Each fails as a whole in fp16: NaN, infinity, a raise, or an error of a tenth. `GOOD`, filled by
`range_good`, maps a name to a model that runs well in fp16. They are written from the failures of public models, not
from the rules.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[..., Any]
BAD: dict[str, tuple[tuple[str, ...], Callable[[], nn.Module], tuple[Tensor, ...]]] = {}
GOOD: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {}


class Around(nn.Module):
    """A forward function between two linears, so that there is something that must go on running low."""

    def __init__(self, forward: Forward, scale: float = 1.0, **buffers: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out = nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.into.weight.data = torch.eye(16) * scale
        assert isinstance(forward, types.FunctionType)
        # torch.export keeps frames of functions called `forward` only
        code = forward.__code__.replace(co_name="forward")
        self.function = types.FunctionType(code, forward.__globals__, closure=forward.__closure__)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        made = self.function(self, self.into(x), *more)
        return self.out(made) if isinstance(made, Tensor) and made.shape[-1:] == (16,) else made


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def padded() -> Tensor:
    """Rows of noise, one of them zero."""
    x = noise(5, 16)
    x[2] = 0.0
    return x


def spiked(height: float = 420.0) -> Tensor:
    x = noise(5, 16)
    x[:, 7] = height
    return x


def bad(rules: str, *args: Tensor, scale: float = 1.0, **buffers: Tensor) -> Callable[[Forward], Forward]:
    def keep(forward: Forward) -> Forward:
        BAD[forward.__name__] = (tuple(rules.split()), lambda: Around(forward, scale, **buffers).eval(), args)
        return forward

    return keep


def good(*args: Tensor, scale: float = 1.0, **buffers: Tensor) -> Callable[[Forward], Forward]:
    def keep(forward: Forward) -> Forward:
        GOOD[forward.__name__] = (lambda: Around(forward, scale, **buffers).eval(), args)
        return forward

    return keep


FUTURE = torch.ones(6, 6, dtype=torch.bool).triu(1)


def scores_of(x: Tensor) -> Tensor:
    return torch.matmul(x / 4, x.transpose(-2, -1))
