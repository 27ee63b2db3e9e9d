"""The loss scale against torch's own, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from precision_audit.master_weights.scale import LossScale, checked_scale, inverse
from precision_audit.records import InputError

DEFAULTS: dict[str, Any] = {"init_scale": 2.0**16, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}


def made(scale: float | str, **options: Any) -> LossScale:
    return checked_scale(scale, **{**DEFAULTS, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"growth_interval": 3},
        {"growth_interval": 1, "init_scale": 4.0},
        {"growth_interval": 2, "growth_factor": 1.3, "backoff_factor": 0.7, "init_scale": 1000.1},
        {"growth_interval": 1, "init_scale": 2.0**126},  # would grow beyond fp32
    ],
)
def test_dynamic_moves_as_gradscaler_does(options: dict[str, Any]) -> None:
    ours = made("dynamic", **options)
    theirs = torch.amp.GradScaler("cpu", **{**DEFAULTS, **options})
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        found_inf = bool(torch.rand((), generator=generator) < 0.2)
        parameter.grad = torch.full((1,), float("inf") if found_inf else 1.0)
        theirs.scale(torch.zeros(1))
        theirs.step(optimizer)
        theirs.update()
        ours.update(found_inf)
        assert ours.scale == theirs.get_scale()
    state = theirs.state_dict()
    assert ours.growth_tracker == state.pop("_growth_tracker")
    assert {name: getattr(ours, name) for name in state} == state  # the names are GradScaler's


def test_defaults_are_gradscalers() -> None:
    state = torch.amp.GradScaler("cpu").state_dict()
    assert (state["scale"], state["growth_factor"], state["backoff_factor"], state["growth_interval"]) == tuple(
        DEFAULTS.values()
    )


def test_static_stays_and_counts() -> None:
    scale = made(128)
    for found_inf in (True, False, True):
        scale.update(found_inf)
    assert (scale.scale, scale.skipped_steps) == (128.0, 2)


def test_inverse_is_rounded_once() -> None:
    assert inverse(128.0) == 2.0**-7
    assert inverse(3.0) == torch.tensor(3.0).double().reciprocal().float().item()


@pytest.mark.parametrize(
    "scale, options, said",
    [
        (0, {}, "loss_scale=0; expected a finite number above 0"),
        (-1.0, {}, "loss_scale=-1.0"),
        (float("nan"), {}, "loss_scale=nan"),
        (1e39, {}, "loss_scale=1e+39"),  # infinite in fp32
        (True, {}, "loss_scale=True"),
        ("dynamical", {}, 'or "dynamic"'),
        ("dynamic", {"init_scale": 0.0}, "init_scale=0.0"),
        ("dynamic", {"growth_factor": 1.0}, "growth_factor=1.0; expected a number above 1"),
        ("dynamic", {"backoff_factor": 1.0}, "backoff_factor=1.0; expected a number between 0 and 1"),
        ("dynamic", {"growth_interval": 0}, "growth_interval=0; expected a whole number"),
    ],
)
def test_refused_in_one_line(scale: float | str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        made(scale, **options)
    assert said in str(refused.value) and "\n" not in str(refused.value)
