"""What becomes of hand-written gradients: measured, since a wrong one raises nothing.

Takes the model as the user wrote it, its capture in training mode, policy and example; gives the capture's
`CustomFunction`s with what was seen. Two questions. Are the gradients of the capture, which of all functions that are
not kept holds the forward only, those of the model? Where they are not, each function is run with autograd's gradient
instead of its own, and only those that make a difference are named: it may be a gradient hook. And what becomes of each
in the eager model run low (`low_functions.py`): its saved tensors and what comes in may differ in format, and its
numbers may leave the range. Asked on the CPU, whatever the policy's device. Leaves no trace in the model (see
`verify/runs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from precision_audit.analyse.low_functions import run_low
from precision_audit.capture import Captured, set_mode
from precision_audit.capture.aliases import written_parameters
from precision_audit.capture.containers import without_cache
from precision_audit.capture.functions import applied
from precision_audit.records import CustomFunction, Policy
from precision_audit.rewrite import unchanged
from precision_audit.verify.eager import GRADIENT_ROUNDING, gradient_errors
from precision_audit.verify.runs import Batch, Conditions, Run, run


def differing(model: nn.Module, captured: Captured, batch: Batch) -> tuple[CustomFunction, ...]:
    """Those of the graph, captured in training mode, with how far its gradients are from the model's."""
    found = captured.graph.functions
    if not found:
        return ()
    set_mode(model, "training")
    module = unchanged({captured.graph.mode: captured})
    conditions = Conditions(True, draws=True, written=module.written)
    with without_cache(model):
        expected = _run(model, batch, conditions)
        if expected is None:  # what fails in fp32 already is verification's to say
            return found
        return _measured(model, module, batch, conditions, expected, found)


def functions(
    model: nn.Module,
    captured: Captured,
    policy: Policy,
    batch: Batch,
    found: tuple[CustomFunction, ...],
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> tuple[CustomFunction, ...]:
    """`found` with what becomes of each in the eager model run low, where the policy lowers; gradients descend from
    `loss`."""
    if not found or not policy.lowers:
        return found
    set_mode(model, "training")
    conditions = Conditions(True, loss, draws=True, written=written_parameters(captured.graph))
    with without_cache(model):
        return run_low(model, policy, batch, conditions, found)


def _measured(
    model: nn.Module,
    module: nn.Module,
    batch: Batch,
    conditions: Conditions,
    expected: Run,
    found: tuple[CustomFunction, ...],
) -> tuple[CustomFunction, ...]:
    """With the difference between the capture's gradients and the model's."""
    made = _run(module, batch, conditions, expected.norms)
    worst, parameter = _worst(expected, made)
    if worst <= GRADIENT_ROUNDING:
        return found
    names = {each.name for each in found if not each.kept and _matters(model, batch, conditions, expected, each.name)}
    return tuple(replace(each, difference=worst, parameter=parameter) if each.name in names else each for each in found)


def _matters(model: nn.Module, batch: Batch, conditions: Conditions, expected: Run, name: str) -> bool:
    """Whether gradients change when the functions of this name have autograd's gradient; true where that cannot run."""
    original = applied()

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__name__ == name:
            return _by_autograd(cls, args)
        return original(cls, *args, **kwargs)

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        made = _run(model, batch, conditions, expected.norms)
    return made is None or _worst(expected, made)[0] > GRADIENT_ROUNDING


def _by_autograd(cls: Any, args: tuple[Any, ...]) -> Any:
    """The forward alone, with a context that keeps nothing."""
    context: Any = SimpleNamespace(needs_input_grad=tuple(isinstance(each, torch.Tensor) for each in args))
    for name in ("save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable"):
        setattr(context, name, lambda *_: None)
    context.set_materialize_grads = lambda *_: None
    if cls.setup_context is not torch.autograd.Function.setup_context:
        return cls.forward(*args)
    return cls.forward(context, *args)


def _run(model: Any, batch: Batch, conditions: Conditions, norms: Mapping[str, float] | None = None) -> Run | None:
    try:
        return run(model, batch, conditions, norms)
    except Exception:
        return None


def _worst(expected: Run, made: Run | None) -> tuple[float, str]:
    """The largest error of a gradient and its parameter; nothing where the other run failed."""
    errors = gradient_errors(expected, made) if made is not None else {}
    name = max(errors, key=lambda each: errors[each], default="")
    return errors.get(name, 0.0), name
