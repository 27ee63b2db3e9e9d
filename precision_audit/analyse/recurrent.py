"""A recurrent op taken apart into its steps, so that what enters each product can be changed, its states included.

Takes the arguments of `aten.lstm`, `gru`, `rnn_tanh` or `rnn_relu` by name and what to do to each factor of a product;
gives what the op gives, computed by the same op on one step of one layer and direction at a time. None for a call that
cannot be repeated so: packed sequences, and dropout between layers, whose draws belong to the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]


def stepped(target: Callable[..., Any], given: Mapping[str, Any], change: Change) -> tuple[Tensor, ...] | None:
    """(output, last state, …) with `change` applied to inputs, weights and hidden states; biases and an LSTM's memory
    enter no product."""
    between = given.get("num_layers", 1) > 1 and given.get("dropout", 0.0) > 0 and given.get("train", False)
    if "input" not in given or between:
        return None
    hx, params = given["hx"], given["params"]
    first = list(hx) if isinstance(hx, list | tuple) else [hx]  # of an LSTM: hidden state and memory
    directions = 2 if given["bidirectional"] else 1
    runs = given["num_layers"] * directions
    own = [
        [
            change(each) if each.dim() > 1 else each
            for each in params[run * len(params) // runs :][: len(params) // runs]
        ]
        for run in range(runs)
    ]
    stream = given["input"].transpose(0, 1) if given["batch_first"] else given["input"]  # [steps, batch, features]
    last: list[list[Tensor]] = []
    for layer in range(given["num_layers"]):
        sides = []
        for direction in range(directions):
            run = layer * directions + direction
            states = [each[run : run + 1] for each in first]
            order = stream.flip(0) if direction else stream
            made, states = _one(target, order, states, own[run], given["has_biases"], change)
            sides.append(made.flip(0) if direction else made)
            last.append(states)
        stream = torch.cat(sides, -1)
    output = stream.transpose(0, 1) if given["batch_first"] else stream
    return (output, *(torch.cat(each) for each in zip(*last, strict=True)))


def _one(
    target: Callable[..., Any],
    stream: Tensor,
    states: list[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    change: Change,
) -> tuple[Tensor, list[Tensor]]:
    """One layer in one direction, its weights already changed: all outputs and the last states."""
    outputs = []
    for step in torch.split(stream, 1):
        entering = [change(states[0]), *states[1:]]
        hx = entering if len(entering) > 1 else entering[0]
        made, *states = target(change(step), hx, weights, has_biases, 1, 0.0, False, False, False)
        outputs.append(made)
    return torch.cat(outputs), states
