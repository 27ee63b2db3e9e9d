"""The hull and the cheapest plan against all labellings of a small model, each cut with everything forced."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import precision_audit as pa
from precision_audit.plan.choosing import HIGH, LOW
from precision_audit.searching.hull import shown
from tests.searching.small import Mlp, rows, use


@pytest.fixture(scope="module")
def planner():
    patch = pytest.MonkeyPatch()
    use(patch)
    found = pa.search(Mlp(depth=2), rows(32, 64), budget={"relative_l2": 0.5}, policy="search-bf16", built_only=True)
    patch.undo()
    return found.evidence.known["bf16", ""]


@pytest.fixture(scope="module")
def everything(planner):
    """Every choice of every op: high, low, or one of its recipes."""
    options = []
    for unit in planner.units:
        recipes = [swap.recipe for swap in planner._base.choices.swaps.get(unit[0], ())]
        options.append([(unit, state) for state in (HIGH, LOW, *recipes)])
    made = []
    for chosen in itertools.product(*options):
        forced = {key: state for unit, state in chosen for key in unit}
        made.append(planner.at(0.0, forced))
    return made


def test_forced_states_are_what_the_plan_has(planner):
    for unit in planner.units:
        for state in (HIGH, LOW):
            forced = {key: state for each in planner.units for key in each} | dict.fromkeys(unit, state)
            assert planner.states(planner.at(0.0, forced))[unit[0]] == state


@pytest.mark.parametrize("target", [1.0, 3e-2, 1e-2, 5e-3, 3e-3, 2e-3, 1e-3, 1e-9])
def test_the_cheapest_within_a_target_is_close_to_the_best_of_all(planner, everything, target):
    best = min(each.seconds for each in everything if each.error <= target)
    found = planner.cheapest(target)
    assert found.error <= target
    assert best * (1 - 1e-9) <= found.seconds <= best * 1.02


@pytest.mark.parametrize("target", [1.0, 3e-2, 1e-2, 3e-3, 1e-3])
def test_no_corner_as_fast_in_print_is_more_exact(planner, target):
    found = planner.cheapest(target)
    alike = [each for each in planner.hull() if shown(each.seconds) <= shown(found.seconds)]
    assert all(each.error >= found.error or each.error > target for each in alike)


def test_of_two_plans_whose_times_are_alike_to_five_digits_the_more_exact_is_taken(planner, monkeypatch):
    """A cost of casts that is nothing: the fastest plan is no longer worth its error."""
    fastest, good = planner.fastest(), planner.safest()
    near = replace(good, seconds=shown(fastest.seconds), error=fastest.error / 10)
    monkeypatch.setattr(planner, "safest", lambda: near)
    assert shown(near.seconds) == shown(fastest.seconds) and planner.cheapest(1.0) is near
    far = replace(near, seconds=fastest.seconds * 1.02)
    monkeypatch.setattr(planner, "safest", lambda: far)
    assert planner.cheapest(1.0) is not far


@pytest.mark.parametrize(("one", "other", "alike"), [(5.08312e-5, 5.08314e-5, True), (5.0831e-5, 5.0832e-5, False)])
def test_times_are_alike_to_five_digits(one, other, alike):
    assert (shown(one) == shown(other)) == alike


def test_no_plan_lies_below_the_hull(planner, everything):
    hull = planner.hull()
    assert [each.seconds for each in hull] == sorted(each.seconds for each in hull)
    for one, other in itertools.pairwise(hull):
        lam = (other.seconds - one.seconds) / (one.error**2 - other.error**2)
        line = one.seconds + lam * one.error**2
        assert all(each.seconds + lam * each.error**2 >= line * (1 - 1e-6) for each in everything)


@pytest.mark.parametrize("target", [3e-2, 1e-2, 5e-3, 2e-3, 1e-3])
def test_steps_up_from_the_fastest_plan_meet_the_target(planner, target):
    made = planner._stepped(target)
    assert made.error <= target and planner.cheapest(target).seconds <= made.seconds * (1 + 1e-9)
