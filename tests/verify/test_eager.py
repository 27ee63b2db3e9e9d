"""The captured graph against the model as it was written: values, and in training gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import precision_audit as pa
from precision_audit.capture import capture, private_copy
from precision_audit.records import InputError, Mode
from precision_audit.rewrite import unchanged
from precision_audit.verify.eager import against_eager


class _Straight(torch.autograd.Function):
    """Rounds, and lets the gradient through: a straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Model(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.way == "function":
            y = _Straight.apply(y)
        elif self.way == "detached":  # the same estimator in ops: export sees both directions
            y = y + (y.round() - y).detach()
        elif self.way == "hook":
            if y.requires_grad:
                y.register_hook(lambda gradient: gradient * 3)
        elif self.way == "reentrant":
            y = checkpoint(torch.sin, y, use_reentrant=True)
        elif self.way == "checkpoint":
            y = checkpoint(torch.sin, y, use_reentrant=False)
        elif self.way == "unregistered":
            y = y + torch.ones(4, dtype=torch.float8_e4m3fn).float()
        return self.last(y)


def _said(way: str, mode: Mode) -> str:
    torch.manual_seed(0)
    model, x = Model(way), torch.randn(8, 4)
    captured = unchanged({mode: capture(private_copy(model), (x,), mode=mode)})
    return against_eager(model, captured, ((x,), {}), "Model", False, mode == "training")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("function", "the gradients of the captured graph of Model are not the model's: at first.weight"),
        ("hook", "the gradients of the captured graph of Model are not the model's: at first.weight"),
        ("reentrant", "the backward pass of Model itself fails: .*use_reentrant=False"),
    ],
)
def test_a_gradient_that_export_forgets_is_refused_in_training_only(way: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        _said(way, "training")
    assert _said(way, "inference") == "bitwise on the example; bitwise on a perturbed input"


@pytest.mark.parametrize("way", ["detached", "checkpoint", "unregistered", "plain"])
def test_gradients_that_agree(way: str) -> None:
    assert _said(way, "training") == "bitwise on the example; bitwise on a perturbed input"


def test_inputs_in_a_format_without_arithmetic_are_not_perturbed() -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.float() * 2

    x = torch.ones(4).to(torch.float8_e4m3fn)
    captured = unchanged({"inference": capture(Wide(), (x,))})
    assert against_eager(Wide(), captured, ((x,), {}), "Wide", True).startswith("bitwise on the example")


def test_a_path_that_depends_on_values_is_refused_with_its_line() -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                return self.linear(x)
            return x

    with pytest.raises(InputError, match=r"test_eager\.py:\d+: if x\.sum\(\) > 0:") as caught:
        pa.audit(Branches(), (torch.ones(2, 4),))
    assert "\n" not in str(caught.value)
