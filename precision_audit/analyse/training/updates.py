"""What storing the weights in a low format would keep of the optimizer's updates.

Takes the weights before and after a step in the captured format; gives one `Update` per parameter. The update is what
was really added, and it is lost where the element, rounded to the format, plus the update rounds to the same number
again: then the weight stays what it is however many steps follow. Nothing is run twice, no optimizer is modelled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from precision_audit.formats import FORMATS, dtype_of
from precision_audit.records import Update

FORMATS_OF_WEIGHTS = ("bf16", "fp16")
_CHUNK = 1 << 17  # elements at a time: in fp64 these stay in a second-level cache
_SAMPLE = 1 << 16


@dataclass(slots=True)
class Updates:
    """The updates of one parameter, step by step."""

    parameter: str
    count: int = 0
    lost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FORMATS_OF_WEIGHTS, 0))
    ratios: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FORMATS_OF_WEIGHTS})

    def add(self, before: Tensor, after: Tensor) -> None:
        """One step."""
        weights, moved = before.reshape(-1), after.reshape(-1)
        for start in range(0, weights.numel(), _CHUNK):
            weight = weights[start : start + _CHUNK].double()
            update = moved[start : start + _CHUNK].double() - weight
            some = update != 0
            self.count += int(some.sum())
            for name in FORMATS_OF_WEIGHTS:
                stored = weight.to(dtype_of(name)).double()
                self.lost[name] += int((unmoved(stored, update, name) & some).sum())
        self._middle(weights, moved)

    def _middle(self, weights: Tensor, moved: Tensor) -> None:
        """The middle ratio, of evenly spaced elements where there are many."""
        every = max(weights.numel() // _SAMPLE, 1)
        weight, update = weights[::every].double(), moved[::every].double() - weights[::every].double()
        some = update != 0
        for name in FORMATS_OF_WEIGHTS if bool(some.any()) else ():
            stored = weight[some].to(dtype_of(name)).double()
            self.ratios[name].append(float((update[some].abs() / half_step(stored, name)).median()))

    def record(self, decay: float) -> Update:
        """The parameter's record; the middle one of the steps' medians."""
        share = tuple((name, self.lost[name] / self.count if self.count else 0.0) for name in FORMATS_OF_WEIGHTS)
        middle = tuple(
            (name, sorted(ratios)[len(ratios) // 2] if ratios else 0.0) for name, ratios in self.ratios.items()
        )
        return Update(self.parameter, self.count, share, middle, decay)


def unmoved(stored: Tensor, update: Tensor, format: str) -> Tensor:
    """Where numbers of the format are the same after the update; both in fp64."""
    return (stored + update).to(dtype_of(format)).double() == stored


def half_step(stored: Tensor, format: str) -> Tensor:
    """Half a unit in the last place of each number of the format."""
    row = FORMATS[format]
    assert row.mantissa_bits is not None and row.min_normal is not None
    least = math.frexp(row.min_normal)[1]
    exponent = torch.frexp(stored.abs())[1].clamp(min=least)
    return torch.ldexp(torch.ones_like(stored), exponent - 2 - row.mantissa_bits)
