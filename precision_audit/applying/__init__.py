"""Apply: the plan on the user's own model, as far as module boundaries can express it.

Takes an eager model and a plan; changes the model in place and gives `Applied`, which says what was done and what of
the plan is not expressed. A converted graph has the plan exactly; but trainers, FSDP, PEFT and `generate()` want the
model that they know. There a plan can act in four ways only: swap a module, store a parameter, cast what enters a
module, cast what leaves it. Casts between two ops of one `forward` are out of reach, and stated.

    inference   swaps; *islands* (see `islands.py`), stored low and hooked; what is left runs as PyTorch promotes it,
                never below its plan and never into a mismatch (see `flow.py`)
    training    swaps; parameters stay fp32 and the same objects, so that an optimizer made before stays valid; formats
                of other ops are `torch.autocast`'s to choose, and where it chooses otherwise is stated

All or nothing: whatever raises, the model is as it was before. Decides no format: the plan does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precision_audit.applying.changes import Changes
from precision_audit.applying.filtering import module_filter_fn
from precision_audit.applying.fitting import Names, check_fit, check_unchanged
from precision_audit.applying.given import Given, graph_of, plan_of
from precision_audit.applying.left import left_of_inference, left_of_training
from precision_audit.records import Graph, InputError, Plan, kind_of
from precision_audit.records.applied import Applied, Hooked, Stored

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Applied", "apply", "module_filter_fn"]


def apply(model: nn.Module, plan: Given, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Applied:
    """Apply a plan to `model` in place; the result says what was swapped, stored and hooked, and what is not expressed.

    `plan`: a `Conversion`, a `Report`, a `Plan` or the path of a plan file. A plan alone does not say who reads what:
    for an inference plan give the example inputs with it. With `args`, `kwargs` the model is also run once, and what
    raises a mismatch of formats is left in the high format.

    Raises InputError, in one line, when the plan does not fit the model or a swap is refused; the model is then as it
    was.
    """
    from torch import nn

    from precision_audit.pipeline import check_arguments

    if not isinstance(model, nn.Module):
        raise InputError(f"model is {kind_of(model)}; expected the nn.Module to apply the plan to")
    check_arguments(args, kwargs)
    check_unchanged(model)
    made = plan_of(plan)
    graph = graph_of(plan, made, model, args, kwargs)
    names = check_fit(model, made, graph)
    if made.mode == "training" or made.autocast_device:
        return _swapped_only(model, made, graph, names)
    if graph is None and (made.casts or made.folds):
        raise InputError(
            "a plan alone does not say who reads what: give the example inputs, apply(model, plan, args), or the "
            "Report or Conversion that it comes from"
        )
    return _boundaries(model, made, graph, names, (tuple(args), dict(kwargs or {})))


def _swapped_only(model: nn.Module, plan: Plan, graph: Graph | None, names: Names) -> Applied:
    with Changes(model, plan, names) as changes:
        swapped = changes.swap()
    left, notes = left_of_training(model, plan, graph)
    return Applied(plan.policy, plan.mode, swapped, (), (), (*changes.left, *left), (*changes.notes, *notes))


def _boundaries(
    model: nn.Module, plan: Plan, graph: Graph | None, names: Names, batch: tuple[tuple[Any, ...], dict[str, Any]]
) -> Applied:
    """Swaps, stored state and hooks; should the trial raise, once more with every island closed, then with none."""
    from precision_audit.applying.choosing import choices

    notes: list[str] = []
    with Changes(model, plan, names) as changes:
        swapped = changes.swap()
        for choice in choices(graph, plan, names):
            stored = [Stored(names.own(fold.value), fold.to) for fold in choice.stored]
            hooked = [Hooked(names.own(each.module), each.takes, each.gives) for each in choice.hooked]
            with changes.trial(batch) as trial:
                changes.store(choice.stored)
                changes.hook(hooked)
            if not trial.raised:
                left = left_of_inference(choice, graph, plan, trial.why)
                notes += [] if model.training is False else [_EVALUATION]
                return Applied(
                    plan.policy, plan.mode, swapped, tuple(stored), tuple(hooked),
                    (*changes.left, *left), (*changes.notes, *notes),
                )  # fmt: skip
        raise InputError(f"the model cannot be run with the example inputs: {trial.raised}")


_EVALUATION = "the plan is for evaluation and the model is in training mode: call model.eval() before running it"
