"""What the models of this folder have in common: a table of them, and two linears of which the rest is harmless.

A model is a class with `inputs()`; `model` enters it in `MODELS` with the formats in which an eager cast breaks it and
the ops that may be kept in fp32 then. The lines that break are marked `# breaks`. `prepare` changes fresh weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Model:
    build: type[nn.Module]
    breaks: tuple[str, ...]
    kept: tuple[str, ...]

    def lines(self) -> set[int]:
        """Numbers of the lines that break."""
        source, start = inspect.getsourcelines(self.build)
        return {start + number for number, text in enumerate(source) if text.rstrip().endswith("# breaks")}

    def made(self) -> tuple[nn.Module, tuple[Any, ...]]:
        """The model and its inputs, the same each time."""
        torch.manual_seed(0)
        built: Any = self.build().eval()
        if hasattr(built, "prepare"):
            with torch.no_grad():
                built.prepare()
        torch.manual_seed(1)
        return built, built.inputs()


MODELS: dict[str, Model] = {}


def model(breaks: str = "", kept: str = "") -> Callable[[type[nn.Module]], type[nn.Module]]:
    def entered(build: type[nn.Module]) -> type[nn.Module]:
        assert build.__name__ not in MODELS
        MODELS[build.__name__] = Model(build, tuple(breaks.split()), tuple(kept.split()))
        return build

    return entered


class Two(nn.Module):
    """Two linears of 32 features; `h` is the harmless part of a model whose hazard lies elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(32, 32)
        self.b = nn.Linear(32, 32)

    def h(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(torch.relu(self.a(x)))
        return made

    @staticmethod
    def inputs() -> tuple[Tensor, ...]:
        return (torch.randn(8, 32),)
