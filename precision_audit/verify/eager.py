"""Is the captured graph the model? Captured against eager, on the example and on other numbers.

Takes the model as the user wrote it and its captured graph; runs both under one seed on the example inputs and on a
perturbed copy of them; gives one sentence for the report. Raises InputError where they part by more than rounding: a
graph that is not the model must not be audited. In training gradients count too: export traces the forward of a
`torch.autograd.Function` and forgets its backward, and it forgets gradient hooks. Leaves no trace in either (see
`runs.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precision_audit.records import Graph, InputError, error_line
from precision_audit.verify.measures import gradient_figure, largest_rms, measure
from precision_audit.verify.runs import Batch, Conditions, Run, run

# Eager fast paths (nn.TransformerEncoder's inference path) differ by rounding in another order, about 1e-6.
_ROUNDING = 1e-4
GRADIENT_ROUNDING = 1e-2  # the same ops backwards: more than that is another formula


def against_eager(
    eager: Callable[..., Any],
    captured: Callable[..., Any],
    batch: Batch,
    name: str,
    guarded: bool,
    training: bool = False,
    custom: bool = False,
) -> str:
    """One sentence, such as "bitwise on the example and on a perturbed input". Where the model has `custom` gradients,
    which PA309 speaks of, other gradients are said and not refused."""
    said = []
    for label, inputs in _trials(batch, guarded):
        conditions = Conditions(training and label == "the example", written=getattr(captured, "written", frozenset()))
        expected = _expected(eager, inputs, conditions, name)
        if expected is None:
            said.append(f"not compared on {label}: the model itself fails there")
            continue
        try:
            found = run(captured, inputs, conditions, expected.norms)
        except Exception as error:
            raise InputError(_apart(name, label, (str(error).strip().splitlines() or [""])[0])) from error
        pairs = [(value, found.outputs.get(key)) for key, value in expected.outputs.items()]
        largest = max((_difference(*pair) for pair in pairs), default=0.0)
        if not largest <= _ROUNDING:
            _check_repeats(eager, inputs, conditions, expected, name)
            raise InputError(_apart(name, label, f"relative difference {largest:.1e}"))
        errors = gradient_errors(expected, found)
        apart = next(((key, error) for key, error in errors.items() if error > GRADIENT_ROUNDING), None)
        if apart and not custom:
            raise InputError(_other_gradients(name, *apart))
        said.append(f"bitwise on {label}" if largest == 0.0 else f"{largest:.0e} on {label} (an eager fast path)")
        if apart:
            said.append(f"but not its gradients, see PA309: at {apart[0]} they differ by {apart[1]:.1e}")
    return "; ".join(said)


def named_path(error: InputError, graph: Graph) -> InputError:
    """The refusal with the user's line at which the path depends on values, where the capture knows it."""
    note = next((each for each in graph.notes if each.startswith("captured along")), "")
    return InputError(f"{error} ({note})") if note else error


def follows_example(graph: Graph) -> bool:
    """Whether the capture took the path of the example where the model's depends on values."""
    return any(note.startswith("captured along") for note in graph.notes)


def _expected(eager: Callable[..., Any], inputs: Batch, conditions: Conditions, name: str) -> Run | None:
    """What the model itself does; None where it refuses these numbers."""
    try:
        return run(eager, inputs, conditions)
    except Exception as error:
        failure = error
    if conditions.training and _runs(eager, inputs, dataclasses.replace(conditions, training=False)):
        raise InputError(
            f"the backward pass of {name} itself fails: {error_line(failure, 300)}; "
            "mend it, or choose an inference policy"
        ) from failure
    return None


def _runs(model: Callable[..., Any], inputs: Batch, conditions: Conditions) -> bool:
    try:
        run(model, inputs, conditions)
    except Exception:
        return False
    return True


def _check_repeats(eager: Callable[..., Any], inputs: Batch, conditions: Conditions, expected: Run, name: str) -> None:
    """A model that differs from itself under one seed draws numbers that torch does not know of."""
    again = run(eager, inputs, conditions).outputs
    if any(not _difference(value, again.get(key)) <= _ROUNDING for key, value in expected.outputs.items()):
        mode = " in training mode" if getattr(eager, "training", False) else ""
        raise InputError(
            f"{name} gives other results for the same input and seed{mode}: it draws random numbers outside torch "
            "(numpy, random), of which a graph holds one draw for good. Draw them with torch, switch that off (in "
            "transformers apply_spec_augment=False, layerdrop=0), or choose an inference policy"
        )


def gradient_errors(expected: Run, found: Run) -> dict[str, float]:
    """By parameter. Where no output of the capture depends on one, its gradient is zero. A parameter that the capture
    does not have at all is not judged here: the state dict tells of it."""
    largest = largest_rms(expected.gradients.values())
    errors = {}
    for key, gradient in expected.gradients.items():
        if found.gradients and key not in found.gradients:
            continue
        other = found.gradients.get(key, torch.zeros_like(gradient))
        errors[key] = gradient_figure(measure(gradient, other), largest)[0]
    return errors


def _other_gradients(name: str, key: str, figure: float) -> str:
    return (
        f"the gradients of the captured graph of {name} are not the model's: at {key} the relative difference "
        f"is {figure:.1e}. torch.export forgets the backward of a torch.autograd.Function or a reentrant "
        "checkpoint, gradient hooks and inference_mode: write the gradient with ops, detach() and no_grad(), "
        "checkpoint with use_reentrant=False, or choose an inference policy"
    )


def _trials(batch: Batch, guarded: bool) -> list[tuple[str, Batch]]:
    """The example, a slightly changed example, and, where the capture followed one path, one of other signs."""
    trials = [("the example", batch), ("a perturbed input", _mapped(batch, _perturbed))]
    if guarded:
        trials.append(("an input of other signs", _mapped(batch, _negated)))
    return trials


def _mapped(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    args, kwargs = pytree.tree_map_only(torch.Tensor, change, (batch[0], dict(batch[1])))
    return args, kwargs


def _perturbed(value: torch.Tensor) -> torch.Tensor:
    if value.is_floating_point() and value.element_size() == 1:
        return value  # the eight-bit formats have no arithmetic
    if value.is_floating_point():
        return (value.detach() * 0.9375).requires_grad_(value.requires_grad)
    if value.dtype == torch.bool or value.ndim == 0:
        return value
    return value.roll(1, dims=-1)  # the same numbers in another order stay in the range that the model expects


def _negated(value: torch.Tensor) -> torch.Tensor:
    return -value.detach() if value.is_floating_point() and value.element_size() > 1 else value


def _difference(expected: torch.Tensor, found: torch.Tensor | None) -> float:
    if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if torch.equal(expected, found):
        return 0.0
    left, right = expected.to(torch.complex128), found.to(torch.complex128)
    same = torch.isnan(left) & torch.isnan(right) | (left == right)
    if bool(same.all()):
        return 0.0
    apart = torch.where(same, torch.zeros_like(left), left - right)
    return float(apart.norm() / left[torch.isfinite(left)].norm().clamp(min=torch.finfo(torch.float64).tiny))


def _apart(name: str, label: str, what: str) -> str:
    return (
        f"the captured graph of {name} is not the model: on {label} they differ ({what}). Expected the same result for "
        "every input of these shapes; the model's path depends on values: use torch.where or torch.cond there"
    )
