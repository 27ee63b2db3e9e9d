"""How a model is to be trained for evidence.

Takes what the user gave (loss, optimizer, steps), the policy's mode and the captures; gives a `Lesson`, or None where
nobody asks for training. A model that is in a low format itself is trained as its fp32 twin, so that what its format
loses can be told; one that does not run in fp32 (it casts in its forward) is trained as it is, and that is said.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from precision_audit.analyse.training import optimizers
from precision_audit.analyse.training.optimizers import Factory
from precision_audit.capture import Captured, capture, private_copy
from precision_audit.capture.handwritten import names
from precision_audit.records import InputError, Mode, error_line
from precision_audit.verify.losses import Loss
from precision_audit.verify.runs import Batch

STEPS = 3
_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Lesson:
    """How the model is trained. `captured`: in training mode, in the format of the steps; `loss(output)` is a scalar;
    `optimizer(parameters)` makes the optimizer."""

    captured: Captured
    loss: Loss | None = None
    optimizer: Factory | None = None
    steps: int = STEPS
    explicit: bool = False  # asked for by name, so that a missing loss is an error
    note: str = ""


def lesson_of(
    original: nn.Module | torch.export.ExportedProgram,
    captures: Mapping[Mode, Captured],
    example: Batch,
    mode: Mode,
    how: tuple[Loss | None, Factory | None, int | None],
    dynamic_shapes: Any,
    weights: bool = True,
) -> Lesson | None:
    """The lesson under a policy of `mode`, none without `weights`; `how` is the loss, the optimizer and the number of
    steps, each as the user gave it or None. InputError for steps and optimizers that cannot be."""
    loss, optimizer, steps = how
    number = STEPS if steps is None else steps
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InputError(f"steps is {number!r}; expected the number of training steps to look at, such as {STEPS}")
    if optimizer is not None:
        optimizers.check(optimizer)
    asked = optimizer is not None or steps is not None
    if not weights or (mode != "training" and not asked):
        return None
    captured, note = _captured(original, captures, example, dynamic_shapes)
    if captured is None:
        raise InputError(
            "an exported program holds one mode, and this one is not in training mode: expected a module for training "
            "evidence; give the nn.Module, or leave optimizer= and steps= out"
        )
    return Lesson(captured, loss, optimizer, number, asked, note)


def _captured(
    original: nn.Module | torch.export.ExportedProgram,
    captures: Mapping[Mode, Captured],
    example: Batch,
    dynamic_shapes: Any,
) -> tuple[Captured | None, str]:
    """The capture that is trained, and what has to be said of it."""
    own = captures.get("training")
    if not isinstance(original, nn.Module):
        return own, ""
    if any(parameter.dtype in _HALVES for parameter in original.parameters()):
        twin, args, kwargs = _widened(original, example)
        why = _fails(twin, args, kwargs)
        if not why:
            kept = names(own.root.graph) if own is not None else ()
            return capture(twin, args, kwargs, mode="training", dynamic_shapes=dynamic_shapes, kept=kept), ""
        note = f"training steps were taken in the model's own formats, whose losses they hide: in fp32 it fails ({why})"
    else:
        note = ""
    if own is None:
        model = private_copy(original)
        own = capture(model, example[0], dict(example[1]), mode="training", dynamic_shapes=dynamic_shapes)
    return own, note


def _widened(original: nn.Module, example: Batch) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A copy of the model with half parameters, buffers and inputs widened to fp32."""

    def wide(value: torch.Tensor) -> torch.Tensor:
        return value.float() if value.dtype in _HALVES else value

    twin = copy.deepcopy(private_copy(original))._apply(wide)  # type: ignore[no-untyped-call]
    args, kwargs = pytree.tree_map_only(torch.Tensor, wide, (example[0], dict(example[1])))
    return twin, args, kwargs


def _fails(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The first line of what the model raises, "" where it runs; on a copy, since a forward may write to it."""
    trial = copy.deepcopy(model).train()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            trial(*pytree.tree_map_only(torch.Tensor, torch.clone, args), **kwargs)
    except Exception as error:
        return error_line(error, 120)
    return ""
