"""Recurrent ops step by step: the same as the op itself, and with states changed as by formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precision_audit.analyse.recurrent import stepped

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}


def arguments(kind: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The op, and what a module of that kind calls it with."""
    torch.manual_seed(0)
    module = KINDS[kind](5, 4, **options).requires_grad_(False)
    runs = module.num_layers * (2 if module.bidirectional else 1)
    hidden = torch.randn(runs, 3, module.proj_size or 4)
    hx = [hidden, torch.randn(runs, 3, 4)] if kind == "lstm" else hidden
    given = dict(
        input=torch.randn(*((3, 7) if module.batch_first else (7, 3)), 5), hx=hx, params=list(module._flat_weights),
        has_biases=module.bias, num_layers=module.num_layers, dropout=module.dropout, train=module.training,
        bidirectional=module.bidirectional, batch_first=module.batch_first,
    )  # fmt: skip
    return getattr(torch.ops.aten, kind).input, given


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"num_layers": 2, "bias": False},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
    ],
)
def test_unchanged_it_is_the_op(kind: str, options: dict[str, Any]) -> None:
    op, given = arguments(kind, **options)
    expected, made = op(*given.values()), stepped(op, given, lambda value: value)
    assert made is not None and len(made) == len(expected)
    for one, other in zip(expected, made, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_projections() -> None:
    op, given = arguments("lstm", proj_size=2, num_layers=2)
    expected, made = op(*given.values()), stepped(op, given, lambda value: value)
    assert made is not None
    for one, other in zip(expected, made, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def halved(value: Tensor) -> Tensor:
    return value / 2


def test_every_factor_is_changed_and_nothing_else() -> None:
    """h' = tanh(W_i x + b_i + W_h h + b_h): halving both factors quarters the products at every step."""
    op, given = arguments("rnn_tanh")
    inner, hidden, *biases = given["params"]
    state, states = given["hx"][0], []
    for step in given["input"]:
        state = torch.tanh((step @ inner.T + state @ hidden.T) / 4 + sum(biases))
        states.append(state)
    made = stepped(op, given, halved)
    assert made is not None
    torch.testing.assert_close(made[0], torch.stack(states), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(made[1], states[-1][None], rtol=1e-5, atol=1e-6)


def test_an_lstm_keeps_its_memory() -> None:
    op, given = arguments("lstm")
    inner, hidden, *biases = given["params"]
    (state, memory), states = (each[0] for each in given["hx"]), []
    for step in given["input"]:
        gates = (step @ inner.T + state @ hidden.T) / 4 + sum(biases)
        enters, forgets, news, shows = gates.chunk(4, -1)
        memory = forgets.sigmoid() * memory + enters.sigmoid() * news.tanh()
        state = shows.sigmoid() * memory.tanh()
        states.append(state)
    made = stepped(op, given, halved)
    assert made is not None
    torch.testing.assert_close(made[0], torch.stack(states), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(made[2], memory[None], rtol=1e-5, atol=1e-6)


def test_what_cannot_be_repeated() -> None:
    op, given = arguments("gru", num_layers=2, dropout=0.5)
    assert given["train"] and stepped(op, given, halved) is None
    packed = {name: value for name, value in given.items() if name not in ("input", "dropout")}
    assert stepped(op, {**packed, "data": given["input"]}, halved) is None
