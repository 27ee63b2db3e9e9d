"""What cannot be captured is told before anything runs, in one line with the mend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from precision_audit.capture.accepts import check_model
from precision_audit.records import InputError


def _named(name: str, depth: int = 0) -> nn.Module:
    module = nn.Module()
    module.add_module(name, nn.Linear(2, 2))
    for _ in range(depth):
        module = nn.Sequential(module)
    return module


def _quantized() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, dtype=torch.qint8)


def _quantized_buffer() -> nn.Module:
    module = nn.Module()
    module.register_buffer("w", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    return module


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Linear, ["the class Linear", "make an instance"]),
        (lambda: 3, ["an int", "expected an nn.Module"]),
        (lambda: nn.Sequential(nn.LazyLinear(4)), ["0.weight", "lazy", "run the model once"]),
        (lambda: nn.Sequential(nn.LazyBatchNorm1d(), nn.ReLU()), ["lazy"]),
        (lambda: torch.jit.script(nn.ReLU()), ["TorchScript", "give the nn.Module"]),
        (lambda: nn.Sequential(nn.ReLU(), torch.jit.script(nn.ReLU())), ["module 1 is TorchScript"]),
        (_quantized, ["module 0", "quantized"]),
        (_quantized_buffer, ["w is a quantized tensor"]),
        (lambda: _named("class", depth=1), ["0.class.weight", "word of Python"]),
        (lambda: _named('say "x"'), ["'say \"x\"' has quotes", "rename that module"]),
        (lambda: _named("a\nb", depth=1), [r"0.a\nb.weight: 'a\nb' has", "control characters"]),
        (lambda: _named("a\\b"), ["backslashes"]),
        (lambda: _named("a\\", depth=1), ["backslashes"]),
        (lambda: _named("\x00"), [r"\x00.weight", "control characters"]),
        (lambda: _named("\ud800"), [r"\ud800.weight"]),
        (lambda: _named("\ufb01"), ["'\ufb01' is another word when Python reads it"]),  # the ligature fi
    ],
)
def test_refused_in_one_line(model: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        check_model(model())
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    "model",
    [
        *map(_named, ("a-b", "1", "graph", "plans", "it's", "a b", "a/b", "a#0", "@rows@", "{x}", "$x", "é", "\u2028")),
        nn.Sequential(nn.ReLU()),
    ],
)
def test_taken(model: nn.Module) -> None:
    check_model(model)


def test_a_reserved_name_without_state_is_taken() -> None:
    module = nn.Module()
    module.add_module("flatten", nn.Flatten())
    check_model(module)
