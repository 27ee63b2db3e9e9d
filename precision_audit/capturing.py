"""Both modes of a model captured, its hand-written gradients kept where autograd's are others.

Takes model, example and policy; gives a `Captured` per mode, why a mode is missing, and what was measured of every
`torch.autograd.Function`. A function whose gradients are those of its forward is captured as the ops of its forward,
which can then be lowered one by one; one whose gradients are its own becomes one op that runs it as it was written, and
the model is captured again for that. What cannot be kept so stays inlined, with the reason, and PA309 says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from precision_audit.analyse.functions import differing, functions
from precision_audit.capture import Captured, capture
from precision_audit.capture.origins import has_weights
from precision_audit.records import CustomFunction, InputError, Mode, Policy
from precision_audit.rewrite import unchanged
from precision_audit.verify.eager import against_eager, follows_example
from precision_audit.verify.runs import Batch


@dataclass(frozen=True)
class Captures:
    """A model as captured: by mode, and why the other mode is `missing`, "" where it is not."""

    modes: dict[Mode, Captured]
    missing: str
    functions: tuple[CustomFunction, ...] = field(default=())


def captures(
    model: nn.Module | torch.export.ExportedProgram,
    batch: Batch,
    policy: Policy,
    dynamic_shapes: Any,
    loss: Callable[[Any], torch.Tensor] | None,
) -> Captures:
    """The policy's mode, and for training the evaluation mode beside it. Gradients of the low model descend from
    `loss`. Nothing is run of a model without weights."""
    found = _captures(model, batch, policy.mode, dynamic_shapes)
    if policy.mode != "training" or not isinstance(model, nn.Module) or not has_weights(model):
        return found
    measured = differing(model, found.modes["training"], batch)
    names = {each.name for each in measured if each.difference}
    if names:
        found, measured = _keeping(model, batch, dynamic_shapes, found, measured, names)
    return replace(found, functions=functions(model, found.modes["training"], policy, batch, measured, loss))


def _keeping(
    model: nn.Module,
    batch: Batch,
    dynamic_shapes: Any,
    found: Captures,
    measured: tuple[CustomFunction, ...],
    names: Collection[str],
) -> tuple[Captures, tuple[CustomFunction, ...]]:
    """The same with the functions `names` kept as far as they can be."""
    try:
        again = _captures(model, batch, "training", dynamic_shapes, names)
    except InputError as error:
        return found, tuple(replace(each, why_not=str(error) if each.difference else "") for each in measured)
    return again, differing(model, again.modes["training"], batch)


def _captures(
    model: nn.Module | torch.export.ExportedProgram,
    batch: Batch,
    mode: Mode,
    dynamic_shapes: Any,
    kept: Collection[str] = (),
) -> Captures:
    args, kwargs = batch
    made: dict[Mode, Captured] = {
        mode: capture(model, args, kwargs, mode=mode, dynamic_shapes=dynamic_shapes, kept=kept)
    }
    missing = ""
    if mode == "training" and isinstance(model, nn.Module):
        try:
            made["inference"] = _evaluation(model, batch, dynamic_shapes, kept)
        except InputError as error:
            missing = str(error)
    elif mode == "training":
        missing = "an exported program holds one mode"
    if missing:
        main = made[mode]
        notes = (*main.graph.notes, f"evaluation mode was not captured: {missing}")
        made[mode] = replace(main, graph=replace(main.graph, notes=notes))
    return Captures(made, missing)


def _evaluation(model: nn.Module, batch: Batch, dynamic_shapes: Any, kept: Collection[str]) -> Captured:
    """Evaluation mode beside training; nothing else compares it with eager, so one that follows the path of the
    example is compared here."""
    args, kwargs = batch
    found = capture(model, args, kwargs, mode="inference", dynamic_shapes=dynamic_shapes, kept=kept)
    if follows_example(found.graph) and has_weights(model):
        against_eager(model, unchanged({"inference": found}), batch, type(model).__name__, guarded=True)
    return found
