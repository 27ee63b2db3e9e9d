"""No random plan and no greedy one is faster than the searched one at an error within the budget, in the digits of a
report: of plans whose times print alike the search takes the most exact."""

from __future__ import annotations

import pytest

from precision_audit.searching.hull import shown
from tests.benchmarks.search_quality import MODELS, rows_of

FAST = ("mlp", "hazard")


@pytest.mark.parametrize(
    ("name", "plans"),
    [pytest.param(name, 20 if name in FAST else 60, marks=() if name in FAST else pytest.mark.slow) for name in MODELS],
)
def test_the_searched_plan_costs_no_more(name, plans):
    for row in rows_of(name, plans=plans):
        assert row.measured <= row.budget and row.runs <= 5, row
        assert shown(row.searched) <= shown(row.best_other), row
