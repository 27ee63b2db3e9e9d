"""The reference's outputs, kept once, and what a converted model makes of the same batches.

Takes the captured model and its batches; gives a `Reference`, and for each plan that is tried a `Run`: figures of every
output, the user's own numbers, and what was raised. One `Run` is one converted model over all batches. Outputs of the
reference are kept, those of a converted model are not. Never leaves a trace in a model, never judges.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from precision_audit.records import InputError, error_line, kind_of
from precision_audit.rewrite.converted import Converted
from precision_audit.searching.budgets import Limit
from precision_audit.verify.measures import Measure, is_discrete, measure, worst
from precision_audit.verify.runs import Batch, Conditions, flatten, run, without_trace


@dataclass
class Reference:
    """What the captured model gives on every batch. `noise` is what it differs by from itself, as relative L2."""

    model: Converted
    batches: Sequence[Batch]
    conditions: Conditions
    outputs: list[Any] = field(default_factory=list)
    noise: float = 0.0
    metrics: dict[int, float] = field(default_factory=dict)  # by function

    def names(self) -> dict[str, Tensor]:
        """The example's outputs by name."""
        return flatten(self.outputs[0])

    def metric(self, function: Callable[..., Any]) -> float:
        """The user's number of the captured model, asked once."""
        if id(function) not in self.metrics:
            try:
                found = _asked(function, self.model, self.conditions)
            except InputError:
                raise
            except Exception as error:
                raise InputError(
                    f"{_name(function)} fails on the model itself: {error_line(error)}; "
                    "expected a function of the model that returns a number"
                ) from error
            if not math.isfinite(found):
                raise InputError(f"{_name(function)} of the model itself is {found}; expected a finite number")
            self.metrics[id(function)] = found
        return self.metrics[id(function)]

    def alike(self, name: str, function: Callable[..., Any]) -> float:
        """What a user's function makes of the reference's outputs beside themselves, at worst; asked once."""
        if id(function) not in self.metrics:
            try:
                found = max(_number(name, function(each, each)) for each in self.outputs)
            except InputError:
                raise
            except Exception as error:
                raise InputError(
                    f"budget {name} fails on the model's own outputs: {error_line(error)}; "
                    "expected a function of two outputs of the model that returns a number"
                ) from error
            if not math.isfinite(found):
                raise InputError(
                    f"budget {name} of the model's outputs beside themselves is {found}; expected a number"
                )
            self.metrics[id(function)] = found
        return self.metrics[id(function)]


@dataclass(frozen=True)
class Run:
    """`outputs` are figures by name, the worst of all batches; `values` the measured numbers in the limits' order."""

    outputs: Mapping[str, Measure]
    values: tuple[float, ...]
    raised: str = ""


def reference(model: Converted, batches: Sequence[Batch]) -> Reference:
    """Run the captured model on every batch, and on the example once more for its noise."""
    conditions = Conditions(training=False, written=model.written)
    if run(model, batches[0], conditions).moved:
        conditions = Conditions(training=False, draws=True, written=model.written)
    found = Reference(model, batches, conditions)
    found.outputs = [_outputs(model, batch, conditions) for batch in batches]
    again = flatten(_outputs(model, batches[0], conditions))
    floats = (measure(value, again[name]).relative_l2 for name, value in found.names().items())
    found.noise = max((each for each in floats if not math.isnan(each)), default=0.0)
    return found


def check(limits: Iterable[Limit], known: Reference) -> None:
    """Refuse budgets that the outputs cannot have, before any plan is run."""
    named = known.names()
    if not named:
        raise InputError("the model returns no tensor: there is nothing to keep to a budget")
    if not any(value.numel() for each in known.outputs for value in flatten(each).values()):
        raise InputError(
            "the outputs have no elements on any batch: there is nothing to keep to a budget; give inputs of which "
            "something comes out"
        )
    for index, each in enumerate(known.outputs):
        lost = [name for name, value in flatten(each).items() if bool(torch.isnan(value).any())]
        if lost:
            which = f"calibration batch {index - 1}" if index else "the example"
            raise InputError(f"{lost[0]} of the model itself holds NaN on {which}: no error can be measured against it")
    for limit in limits:
        if limit.function is not None:
            known.alike(limit.name, limit.function)
        if limit.function is not None or limit.of_metric:
            continue
        floats = [name for name, value in named.items() if not is_discrete(value)]
        if limit.name in ("relative_l2", "sqnr") and not floats:
            kinds = ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in named.values()}))
            raise InputError(
                f"budget {limit.name}: no output is a float ({kinds}), so it has no such error; "
                "give metric=, or a function of both outputs"
            )
        if limit.name == "argmax_flip" and not any(_has_classes(value) for value in named.values()):
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in named.items())
            raise InputError(
                f"budget argmax_flip: no output has rows of classes ({shapes}); expected a float output of two "
                "dimensions or more whose last one has two elements or more; use relative_l2"
            )


def tried(converted: Converted, limits: Sequence[Limit], known: Reference, metric: Callable[..., Any] | None) -> Run:
    """One converted model over all batches, judged by every limit's measure."""
    figures: dict[str, Measure] = {}
    own = [-math.inf] * len(limits)
    try:
        for batch, expected in zip(known.batches, known.outputs, strict=True):
            made = _outputs(converted, converted.as_read(*batch), known.conditions)
            for name, value in flatten(made).items():
                seen = measure(flatten(expected)[name], value, rows=True)
                figures[name] = worst(figures[name], seen) if name in figures else seen
            for index, limit in enumerate(limits):
                if limit.function is not None:
                    own[index] = _worse(own[index], _number(limit.name, limit.function(expected, made)))
        values = [_value(limit, figures, known, own[index], metric, converted) for index, limit in enumerate(limits)]
    except InputError:
        raise
    except Exception as error:  # whatever a model or a function raises: the plan is out
        return Run(figures, (math.nan,) * len(limits), error_line(error))
    return Run(figures, tuple(values))


def _value(
    limit: Limit,
    figures: Mapping[str, Measure],
    known: Reference,
    own: float,
    metric: Callable[..., Any] | None,
    converted: Converted,
) -> float:
    if limit.function is not None:
        return own
    if limit.of_metric:
        assert metric is not None, "checked with the budget"
        return _asked(metric, converted, known.conditions)
    floats = [figures[name] for name, value in known.names().items() if not is_discrete(value)]
    if limit.name == "relative_l2":
        return max(each.relative_l2 for each in floats)
    if limit.name == "sqnr":
        return min(each.sqnr_db for each in floats)
    return max(each.flip_rate for each in floats if each.flip_rate is not None)


def _outputs(model: Converted, batch: Batch, conditions: Conditions) -> Any:
    with without_trace(model, conditions), torch.no_grad():
        args, kwargs = pytree.tree_map_only(Tensor, lambda value: value.detach().clone(), (batch[0], dict(batch[1])))
        output = model(*args, **kwargs)
    return pytree.tree_map_only(Tensor, Tensor.detach, output)


def _asked(metric: Callable[..., Any], model: Converted, conditions: Conditions) -> float:
    with without_trace(model, conditions), torch.no_grad():
        return _number("metric", metric(model))


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if not isinstance(value, numbers.Real):
        what = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else kind_of(value)
        raise InputError(f"{name} returned {what}; expected a number")
    return float(value)


def _worse(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


def _has_classes(value: Tensor) -> bool:
    return value.ndim >= 2 and value.shape[-1] >= 2 and value.numel() > 0 and value.is_floating_point()


def _name(function: Callable[..., Any]) -> str:
    """`metric accuracy`; `metric` where the function is called so itself."""
    name = str(getattr(function, "__name__", type(function).__name__))
    return "metric" if name == "metric" else f"metric {name}"
