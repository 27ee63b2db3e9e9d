"""What a budget may be, and how much of one is used up."""

from __future__ import annotations

import math

import pytest

from precision_audit.records import InputError
from precision_audit.searching.budgets import Limit, limits, parse


def number(_model):
    return 0.0


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"relative_l2": 0}, "nothing that is rounded meets it"),
        ({"relative_l2": 0.0}, "above zero"),
        ({"sqnr": 0}, "an error as large as the output meets it"),
        ({"argmax_flip": -0.1}, "expected zero or more"),
        ({"relative_l2": -1e-3}, "no error is below zero"),
        ({"relative_l2": math.nan}, "expected a finite number"),
        ({"sqnr": math.inf}, "expected a finite number"),
        ({"relative_l2": "much"}, "is no number"),
        ({"relative_l2": None}, "is no number"),
        ({"relative_l2": True}, "is no number"),
        ({"relative_12": 1e-2}, "did you mean relative_l2?"),
        ({"sqrn": 30}, "did you mean sqnr?"),
        ({"xyz": 30}, "expected one of relative_l2, sqnr"),
        ({"argmax_flip": 1}, "between 0 and 1"),
        ({"relative_l2": "1%"}, "a percentage is of the user's metric only; write 0.01"),
        ({3: 1}, "expected a name or a function"),
        ({"metric": 1}, "there is no metric"),
        ({}, "budget is empty"),
        (1e-2, "budget is a float; expected a dict"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(budget, said):
    with pytest.raises(InputError, match="budget") as error:
        limits(budget)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_metric_that_is_no_function_is_refused():
    with pytest.raises(InputError, match="metric is a float; expected a function"):
        limits({"metric": 0.1}, 0.5)


@pytest.mark.parametrize(
    ("name", "bound", "relative", "measured", "reference", "usage"),
    [
        ("relative_l2", 1e-2, False, 5e-3, 0.0, 0.5),
        ("relative_l2", 1e-2, False, math.inf, 0.0, math.inf),
        ("relative_l2", 1e-2, False, math.nan, 0.0, math.inf),
        ("sqnr", 40.0, False, 40.0, 0.0, 1.0),
        ("sqnr", 40.0, False, 60.0, 0.0, 0.1),  # 20 dB are a factor of ten in amplitude
        ("sqnr", 40.0, False, -math.inf, 0.0, math.inf),
        ("argmax_flip", 1e-3, False, 2e-3, 0.0, 2.0),
        ("metric", 0.1, False, 0.85, 0.9, 0.5),
        ("metric", 0.1, False, 0.95, 0.9, 0.5),
        ("metric", 0.01, True, 198.0, 200.0, 1.0),
        ("metric_drop", 0.1, False, 0.85, 0.9, 0.5),
        ("metric_drop", 0.1, False, 0.95, 0.9, 0.0),
        ("metric_rise", 0.1, False, 0.95, 0.9, 0.5),
        ("metric_rise", 0.1, False, 0.85, 0.9, 0.0),
        ("metric_rise", 0.1, False, math.nan, 0.9, math.inf),
    ],
)
def test_the_part_of_a_budget_that_is_used(name, bound, relative, measured, reference, usage):
    assert Limit(name, bound, relative=relative).usage(measured, reference) == pytest.approx(usage)


@pytest.mark.parametrize(
    ("name", "bound", "error"), [("relative_l2", 0.02, 0.02), ("sqnr", 40.0, 0.01), ("metric", 1.0, 0.0)]
)
def test_the_error_that_uses_all_of_it(name, bound, error):
    assert Limit(name, bound).error == pytest.approx(error)


@pytest.mark.parametrize(
    ("limit", "stated"),
    [
        (Limit("relative_l2", 0.01), "relative_l2 <= 0.01"),
        (Limit("sqnr", 30.0), "sqnr >= 30 dB"),
        (Limit("metric", 0.01, relative=True), "metric moves by at most 1 % of the model's own"),
        (Limit("metric_drop", 0.005), "metric falls by at most 0.005"),
        (Limit("metric_rise", 0.125, relative=True), "metric rises by at most 12.5 % of the model's own"),
        (Limit("sqnr", 2.0, number), "sqnr <= 2"),  # a function of the user's that is called so
    ],
)
def test_what_is_asked_is_stated(limit, stated):
    assert limit.stated == stated


@pytest.mark.parametrize("key", ["argmax_flip", "metric", "metric_drop", "metric_rise", number])
def test_zero_may_be_asked_of_what_rounding_need_not_change(key):
    (limit,) = limits({key: 0}, number)
    assert (limit.usage(0.0), limit.usage(0.25)) == ((0.0, 0.0) if limit.name == "metric_drop" else (0.0, math.inf))


@pytest.mark.parametrize("name", ["sqnr", "metric_drop", "metric_rise"])
def test_a_function_is_judged_by_its_number_whatever_it_is_called(name):
    assert Limit(name, 2.0, number).usage(1.0) == 0.5 and Limit(name, 2.0, number).error == 0.0


@pytest.mark.parametrize(("name", "example"), [("metric", "metric=1%"), ("sqnr", "sqnr=30"), ("argmax_flip", "=0.001")])
def test_the_example_is_one_of_the_measure_itself(name, example):
    with pytest.raises(InputError) as error:
        limits({name: "much"}, number)
    assert str(error.value).endswith(f"is no number; expected such as {example}") or example in str(error.value)


def test_budgets_as_typed():
    assert parse(("relative_l2=1e-2,sqnr = 30", "m:f<=2"), lambda _: number) == {
        "relative_l2": "1e-2", "sqnr": "30", number: "2",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["relative_l2", "=3", "relative_l2="])
def test_a_budget_without_a_name_or_a_number(text):
    with pytest.raises(InputError, match="expected NAME=NUMBER"):
        parse((text,), lambda _: number)


def test_a_budget_given_twice():
    with pytest.raises(InputError, match="given twice"):
        parse(("sqnr=1", "sqnr=2"), lambda _: number)
