"""`precision-audit search MODEL --budget NAME=NUMBER`: the options of a search, checked, and the search itself.

Takes what was typed and the loaded model; gives the report and the module of the plan that was found. A policy
restricts only where one was given; the default of the other commands is none. Options that speak of a plan that is
there already are refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precision_audit.cli.config import Settings
from precision_audit.records import InputError, Policy, Report, kind_of

if TYPE_CHECKING:
    from precision_audit.loader import Loaded
    from precision_audit.rewrite.converted import Converted


def policies(settings: Settings) -> tuple[Policy, ...]:
    """What the search may choose from; refused before the model is loaded, with options and budgets that cannot be."""
    from precision_audit.searching import budgets, space

    for name in ("apply_plan", "check_plan", "steps"):
        if getattr(settings, name):
            raise InputError(f"--{name.replace('_', '-')}: a search makes its own plan; use it with audit or convert")
    found = space.given(settings.policy if "policy" in settings.origins else None)
    budgets.limits(_texts(settings, lambda name: lambda *_: 0.0), lambda _: 0.0)  # whether each can be meant at all
    return found


def run(
    loaded: Loaded, settings: Settings, argv: Sequence[str], options: str, built_only: bool
) -> tuple[Report, Converted]:
    """Search, as `pa.search` does."""
    from precision_audit import searching

    metric = _function(settings.metric, "--metric") if settings.metric else loaded.metric
    found = searching.search(
        loaded.model,
        loaded.args,
        loaded.kwargs,
        calibration=loaded.calibration,
        budget=_texts(settings, lambda name: _function(name, "--budget")),
        metric=metric,
        policy=settings.policy if "policy" in settings.origins else None,
        device=settings.device,
        dynamic_shapes=loaded.dynamic_shapes,
        loss=loaded.loss,
        built_only=built_only,
        provenance={
            **loaded.provenance, "command": shlex.join(["precision-audit", *argv]), "options": options,
        },
    )  # fmt: skip
    return found.report, found.module


def _texts(settings: Settings, resolve: Callable[[str], Callable[..., Any]]) -> Mapping[Any, Any]:
    from precision_audit.searching import BUDGET, budgets

    return budgets.parse(settings.budget, resolve) if settings.budget else BUDGET


def _function(spec: str, option: str) -> Callable[..., Any]:
    """The function behind `file.py:name` or `package.module:name`."""
    from precision_audit.loader import target

    path, name = target.split(spec)
    if not name:
        raise InputError(f"{option} {spec}: names no function; expected file.py:name or package.module:name")
    user = target.import_target(path, name)
    found = target.attribute(user, name)
    if not callable(found):
        raise InputError(f"{option} {spec}: is {kind_of(found)}; expected a function")
    function: Callable[..., Any] = found
    return function
