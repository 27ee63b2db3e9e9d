"""Search: the cheapest plan that keeps to an error budget, found by weighing and proved by running.

    found = pa.search(model, args, calibration=batches, budget={"relative_l2": 1e-2}, device="h100")
    found.met, found.plan, found.module, found.report, found.again(budget={"relative_l2": 1e-3})

Takes a model, inputs and budgets; gives a `Found`. The stages, one module each: what may be chosen (`space.py`,
`alternatives.py`), what is known of it (`evidence.py`), the plans by what error is worth (`frontier.py`), proposing and
running (`solving.py`, `running.py`, `emulated.py`), and why each op is where it is (`reasons.py`). Evidence is taken
once; each budget costs five runs of a converted model at most. Must never call a plan right that was not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from precision_audit.ambient import precision_settings_kept, random_state_kept
from precision_audit.pipeline import Model, Request
from precision_audit.records import Plan, Point, Policy, Report, Search
from precision_audit.rewrite.converted import Converted
from precision_audit.searching import budgets, reporting, space
from precision_audit.searching.evidence import Evidence, gather
from precision_audit.searching.solving import Solution, converted, solve

__all__ = ["Found", "search"]

BUDGET = {"relative_l2": 1e-2}


@dataclass(frozen=True)
class Found:
    """What a search found. `module` runs the plan; linears whose own module cannot be built on this machine are
    emulated in it, which `report.search.emulated` lists: right in its numbers, and no faster."""

    plan: Plan
    module: Converted
    report: Report
    evidence: Evidence = field(repr=False)
    _solution: Solution = field(repr=False)

    @property
    def search(self) -> Search:
        assert self.report.search is not None
        return self.report.search

    @property
    def met(self) -> bool:
        """Whether the plan was measured to keep to every budget."""
        return self.search.outcome != "not met"

    @property
    def measured(self) -> dict[str, float]:
        """What each budget's measure was, over all batches."""
        return {each.name: each.measured for each in self.search.bounds}

    @property
    def runs(self) -> int:
        """Runs of converted models after the evidence."""
        return self.search.runs

    @property
    def frontier(self) -> tuple[Point, ...]:
        """Predicted time against predicted error, fastest first."""
        return self.search.frontier

    def again(self, budget: Mapping[Any, Any], *, metric: Callable[..., Any] | None = None) -> Found:
        """Another budget on the same evidence: nothing is captured, analysed or scored again."""
        metric = metric or self._solution.metric
        with random_state_kept(), precision_settings_kept():
            return _found(self.evidence, budgets.limits(budget, metric), metric)


def search(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    calibration: Iterable[Any] | None = None,
    budget: Mapping[Any, Any] | None = None,
    metric: Callable[..., Any] | None = None,
    policy: str | Path | Policy | None = None,
    device: str | None = None,
    dynamic_shapes: Any = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    built_only: bool = False,
    provenance: Mapping[str, str] | None = None,
) -> Found:
    """Find the plan that is predicted to be the fastest of those that keep to `budget`, and prove it by running it.

    `budget`: one or more of relative_l2, sqnr (dB), argmax_flip, metric, metric_drop, metric_rise, or a function of
    the reference's output and the converted model's; all must hold on every batch ({"relative_l2": 1e-2}). `metric`:
    a function of a model that returns the user's own number. `policy`: restricts the search by its `keep-` and `pin:`
    rules; without one everything is free in bf16 and in fp16, but for facts and the remedies of hazards. `built_only`
    leaves out swaps whose module cannot be built on this machine. Further arguments as for `convert`.

    Where no plan keeps to the budget `met` is false and `plan` the one that came nearest. The user's module is not
    changed. Raises InputError, in one line, for anything that cannot be used.
    """
    limits = budgets.limits(BUDGET if budget is None else budget, metric)
    policies = space.given(policy)
    request = Request(
        model, args, kwargs, policies[0], device, calibration, dynamic_shapes, loss, provenance=provenance
    )
    with random_state_kept(), precision_settings_kept():
        return _found(gather(request, policies, built_only), limits, metric)


def _found(evidence: Evidence, limits: tuple[budgets.Limit, ...], metric: Callable[..., Any] | None) -> Found:
    solution = solve(evidence, limits, metric)
    report = reporting.report(evidence, solution)
    return Found(report.plan, converted(evidence, solution.best.solved), report, evidence, solution)
