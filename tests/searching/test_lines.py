"""What a line learns: whose shares are scaled, which swaps are spared, what the later stages may propose."""

from __future__ import annotations

import math

import pytest

import precision_audit as pa
from precision_audit.searching.alternatives import scheme_of
from precision_audit.searching.frontier import Planner
from precision_audit.searching.lines import Learned, Line
from tests.searching.small import rows, transformer, use


@pytest.fixture(scope="module")
def found():
    patch = pytest.MonkeyPatch()
    use(patch)
    made = pa.search(transformer(64), rows(2, 64, 64), budget={"relative_l2": 1.0}, policy="search-bf16")
    patch.undo()
    return made


@pytest.fixture
def line(found):
    evidence, base = found.evidence, found.evidence.bases[0]
    planner = Planner(evidence.graph, base, evidence.hardware, False)
    return Line(evidence.graph, evidence.hardware, base, planner, [100.0], False, Learned())  # budget: 1e-2


def swaps(solved):
    return {(swap.op, swap.recipe) for swap in solved.plan.swaps}


def test_swaps_that_err_twice_as_much_are_scaled_and_the_rest_is_not(line):
    solved = line.planner.fastest()
    plain = line.planner.at(0.0, dict.fromkeys(line.base.free, "low"))
    assert len(solved.plan.swaps) > 3 and solved.error > 2 * plain.error
    line.learn(solved, [100.0 * 2 * solved.error], "learned")
    assert line.slopes == pytest.approx([100.0]), "what is not swapped is predicted as before"
    schemes = {scheme_of(swap) for swap in solved.plan.swaps}
    own = sum(line.base.choices.shares[key] for key in swaps(solved))
    expected = (4 * solved.error**2 - (solved.error**2 - own)) / own
    assert line.learned.factors == pytest.approx(dict.fromkeys(schemes, expected))
    again = line._corrected().at(0.0, line.planner.states(solved))
    assert again.error == pytest.approx(2 * solved.error), "the plan is now predicted to err as was measured"


def test_a_plan_without_swaps_corrects_the_slope(line):
    solved = line.planner.at(0.0, dict.fromkeys(line.base.free, "low"))
    assert not solved.plan.swaps
    line.learn(solved, [100.0 * 3 * solved.error], "learned")
    assert line.slopes == pytest.approx([300.0]) and not line.learned.factors and not line.learned.failed


def test_what_is_not_finite_is_taken_for_very_much(line):
    solved = line.planner.at(0.0, dict.fromkeys(line.base.free, "low"))
    line.learn(solved, [math.inf], "learned")
    assert math.isfinite(line.slopes[0]) and line.slopes[0] * solved.error > 10


def test_the_swaps_that_failed_are_spared_and_the_others_are_not(line):
    solved = line.planner.fastest()
    shares = {key: line.base.choices.shares[key] for key in swaps(solved)}
    line.learn(solved, [50.0], "learned")
    failed = line.learned.failed
    assert failed and failed < swaps(solved)
    assert min(shares[key] for key in failed) >= max(shares[key] for key in swaps(solved) - failed)
    schemes = {scheme_of(swap) for swap in solved.plan.swaps}
    assert schemes.isdisjoint(scheme_of(swap) for swap in line.proposal("learned").plan.swaps)
    spared = line.proposal("spared")
    assert failed.isdisjoint(swaps(spared)) and spared.error <= 1e-2


def test_there_is_nothing_to_spare_before_a_swap_failed(line):
    assert line.proposal("spared") is None


def test_beyond_reaches_a_little_further(line):
    near, far = line.proposal("learned"), line.proposal("beyond")
    assert near.error <= 1e-2 and far.error <= 1.25e-2 and far.seconds <= near.seconds


def test_a_hopeful_line_is_given_up_once_it_is_wrong(line):
    line.hopeful = True
    line.learn(line.planner.fastest(), [2.0], "learned")
    assert not line.alive


def test_the_report_keeps_to_what_the_evidence_predicted(line):
    solved = line.planner.fastest()
    line.learned.factors.update({scheme_of(swap): 4.0 for swap in solved.plan.swaps})
    corrected = line._corrected().at(0.0, line.planner.states(solved))
    assert corrected.error > 1.5 * solved.error
    assert line.as_predicted(corrected).error == pytest.approx(solved.error)
