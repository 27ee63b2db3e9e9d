"""What the user hands over as a plan, and the graph that goes with it.

Takes a `Plan`, a `Report`, a `Conversion` or the path of a plan file; gives the `Plan` and the `Graph` it was made for.
A plan says which format each op has, not who reads what: the graph comes with a report, or from capturing the model
again with example inputs. Validates here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from torch import nn

from precision_audit.plan import file as plan_file
from precision_audit.records import Graph, InputError, Plan, Report, kind_of

if TYPE_CHECKING:
    from precision_audit.pipeline import Conversion

Given = Union[Plan, Report, "Conversion", str, Path]


def plan_of(given: Given) -> Plan:
    """The plan in whatever was given."""
    if isinstance(given, Plan):
        return given
    if isinstance(given, (str, Path)):
        return plan_file.read(given)
    plan = getattr(given, "plan", None)
    if not isinstance(plan, Plan):
        raise InputError(f"plan is {kind_of(given)}; expected a Plan, a Report, a Conversion or a plan file")
    return plan


def graph_of(
    given: Given, plan: Plan, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Graph | None:
    """The graph that the plan was made for, None where only a capture with example inputs could tell."""
    report = given if isinstance(given, Report) else getattr(given, "report", None)
    if isinstance(report, Report) and report.graph.mode == plan.mode:
        return report.graph
    if not args and not kwargs:
        return None
    from precision_audit.capture import capture, private_copy

    return capture(private_copy(model), args, kwargs, mode=plan.mode).graph
