"""The factor that lifts gradients out of fp16's underflow: fixed, or found as training goes.

Takes whether a step met Inf or NaN; gives the factor of the next step. It follows torch.amp.GradScaler in names,
defaults and arithmetic (the factor is an fp32 number), so that either can stand in for the other. Never looks at a
tensor.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from precision_audit.records import InputError


@dataclass(slots=True)
class LossScale:
    """`scale` now, and how a dynamic one moves. `growth_tracker` counts steps without Inf or NaN in a row,
    `skipped_steps` those with, over the whole training."""

    scale: float
    dynamic: bool
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    growth_tracker: int = 0
    skipped_steps: int = 0

    def update(self, found_inf: bool) -> None:
        """After a step, made or skipped."""
        self.skipped_steps += found_inf
        if not self.dynamic:
            return
        self.growth_tracker = 0 if found_inf else self.growth_tracker + 1
        if found_inf:
            self.scale = fp32(self.scale * self.backoff_factor)
        elif self.growth_tracker == self.growth_interval:
            grown = fp32(self.scale * self.growth_factor)
            self.scale = grown if math.isfinite(grown) else self.scale
            self.growth_tracker = 0

    def inverse(self) -> float:
        return inverse(self.scale)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def check(self, state: Any) -> None:
        """Raises `InputError` where `state` is not what `state_dict` gives, or the scale moved otherwise there."""
        missing = sorted(set(asdict(self)) - set(state if isinstance(state, dict) else ()))
        if missing:
            raise InputError(
                f"MasterWeights.load_state_dict: the loss scale lacks {missing[0]!r}; save state_dict() whole"
            )
        if state["dynamic"] != self.dynamic:
            saved, own = ("dynamic" if each else "static" for each in (state["dynamic"], self.dynamic))
            mend = '"dynamic"' if state["dynamic"] else f"{state['scale']:g}"
            raise InputError(
                f"MasterWeights.load_state_dict: the saved loss scale is {saved}, this one {own}; "
                f"make it with loss_scale={mend}"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in asdict(self):
            setattr(self, name, state[name])


def checked_scale(
    scale: float | str, init_scale: float, growth_factor: float, backoff_factor: float, growth_interval: int
) -> LossScale:
    """A checked one. Raises `InputError`."""
    dynamic = scale == "dynamic"
    first = init_scale if dynamic else scale
    name = "init_scale" if dynamic else "loss_scale"
    if isinstance(first, bool) or not isinstance(first, int | float) or not 0 < fp32(first) < math.inf:
        expected = "a finite number above 0" + ("" if dynamic else ' or "dynamic"')
        raise InputError(f"MasterWeights: {name}={first!r}; expected {expected}")
    if not growth_factor > 1:
        raise InputError(f"MasterWeights: growth_factor={growth_factor!r}; expected a number above 1")
    if not 0 < backoff_factor < 1:
        raise InputError(f"MasterWeights: backoff_factor={backoff_factor!r}; expected a number between 0 and 1")
    if not isinstance(growth_interval, int) or growth_interval < 1:
        raise InputError(f"MasterWeights: growth_interval={growth_interval!r}; expected a whole number, 1 or more")
    return LossScale(fp32(first), dynamic, growth_factor, backoff_factor, growth_interval)


def inverse(scale: float) -> float:
    """1 / `scale`, rounded once to fp32, as GradScaler does."""
    return fp32(1 / scale)


def fp32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float64).float().item()
