"""Figures against hand-computed ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from precision_audit.verify import measures
from precision_audit.verify.measures import gradient_figure, largest_rms, measure, row_median, worst

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_median_over_rows_is_not_the_one_huge_rows(dtype):
    """Nine rows off by a tenth beside one that is a thousand times as large and exact."""
    reference = torch.ones(10, 4, dtype=dtype)
    reference[3] *= 1024
    other = reference * 1.125
    other[3] = reference[3]
    found = measure(reference, other, rows=True)
    whole = math.sqrt(9 * 4 * 0.125**2 / (9 * 4 + 4 * 1024**2))
    assert found.relative_l2 == pytest.approx(whole, rel=1e-6) and found.row_median == pytest.approx(0.125)
    assert measure(reference, other).row_median is None


@pytest.mark.parametrize(
    ("reference", "other", "median"),
    [
        ([[1.0, 0], [0, 0], [2, 0]], [[1.5, 0], [9, 9], [2, 0.5]], 0.25),  # zero rows say nothing; the lower middle
        ([[1.0, 0], [math.inf, 0], [2, 0]], [[1.5, 0], [0, 0], [4, 0]], 0.5),  # nor do those that are infinite already
        ([[1.0, 0], [2, 0], [4, 0]], [[math.nan, 0], [math.inf, 0], [4, 0]], math.inf),
        ([[1.0, 2]], [[1, 2]], None),
        ([[1.0], [2]], [[1], [3]], None),
        ([1.0, 2], [1, 3], None),
    ],
)
def test_rows_that_tell(reference, other, median):
    assert row_median(torch.tensor(reference), torch.tensor(other)) == (pytest.approx(median) if median else None)


def test_the_median_is_the_same_in_pieces(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    reference, other = (torch.randn(3, 7, 5, generator=generator) for _ in range(2))
    errors = ((other - reference).double().norm(dim=-1) / reference.double().norm(dim=-1)).flatten().sort().values
    monkeypatch.setattr(measures, "_PIECE", 12)
    assert row_median(reference, other) == pytest.approx(float(errors[10]))


def test_figures_of_a_known_pair() -> None:
    # ‖(3,4)‖ = 5, difference (0.3, 0.4): 0.5, so 0.1; SQNR 10·log10(25/0.25) = 20 dB; same direction
    found = measure(torch.tensor([3.0, 4.0]), torch.tensor([3.3, 4.4], dtype=torch.float64))
    assert found.relative_l2 == pytest.approx(0.1, rel=1e-9)
    assert found.max_abs == pytest.approx(0.4, rel=1e-9)
    assert found.sqnr_db == pytest.approx(20.0, rel=1e-9)
    assert found.cosine == pytest.approx(1.0, rel=1e-12)
    assert (found.nonfinite, found.reference_nonfinite) == (0, 0)


@pytest.mark.parametrize(
    ("reference", "other", "relative", "cosine"),
    [
        ([1.0, 0.0], [0.0, 1.0], math.sqrt(2), 0.0),
        ([1.0, 0.0], [-1.0, 0.0], 2.0, -1.0),
        ([0.0, 0.0], [0.0, 0.0], 0.0, 1.0),
        ([0.0, 0.0], [0.03, 0.04], 0.05, 0.0),  # absolute where the reference is zero
        ([], [], 0.0, 1.0),
        ([3.0, NAN, 4.0], [3.0, 7.0, 4.0], 0.0, 1.0),  # NaN in the reference: says nothing
        ([3.0, NAN, 4.0], [3.0, NAN, 4.0], 0.0, 1.0),
        ([3.0, -INF], [3.0, -3.4e38], 0.0, 1.0),  # a mask of -inf that became finite
        ([3.0, INF], [3.0, -INF], INF, 1.0),
        ([3.0, INF], [3.0, NAN], INF, 1.0),
        ([3.0, 1.0], [3.0, NAN], INF, 1.0),
        ([3.0, 1.0], [3.0, INF], INF, 1.0),
    ],
)
def test_relative_error(reference: list[float], other: list[float], relative: float, cosine: float) -> None:
    found = measure(torch.tensor(reference), torch.tensor(other))
    assert found.relative_l2 == pytest.approx(relative, rel=1e-6)
    assert found.cosine == pytest.approx(cosine, abs=1e-6)


def test_pieces_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = torch.randn(1000), torch.randn(1000)
    expected = (other.double() - one.double()).norm() / one.double().norm()
    monkeypatch.setattr(measures, "_PIECE", 7)
    assert measure(one, other).relative_l2 == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        ([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [5.0, 1.0]], [[1.0, 2.0], [1.0, 2.0], [3.0, 2.0], [5.0, 1.0]], 0.5),
        ([1.0, 2.0], [2.0, 1.0], None),  # one row is no batch of choices
        ([[1.0], [2.0]], [[2.0], [1.0]], None),  # one class is no choice
        ([[[1.0, 2.0]]], [[[2.0, 1.0]]], 1.0),  # tokens of a sequence
        ([[[[1.0, 2.0]]]], [[[[2.0, 1.0]]]], None),  # columns of an image
    ],
)
def test_flip_rate(reference: list[Any], other: list[Any], expected: float | None) -> None:
    assert measure(torch.tensor(reference), torch.tensor(other)).flip_rate == expected


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integers_count_unequal_elements(dtype: torch.dtype) -> None:
    found = measure(torch.tensor([1, 0, 1, 0]).to(dtype), torch.tensor([1, 0, 0, 0]).to(dtype))
    assert found.relative_l2 == 0.25
    assert found.flip_rate is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float64])
def test_formats_may_differ(dtype: torch.dtype) -> None:
    assert measure(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]).to(dtype)).relative_l2 == 0


def test_complex_counts_both_parts() -> None:
    assert measure(torch.tensor([3 + 4j]), torch.tensor([3 + 4.5j])).relative_l2 == pytest.approx(0.1)


def test_another_shape_is_infinitely_far() -> None:
    assert measure(torch.ones(2), torch.ones(3)).relative_l2 == INF


def test_worst_takes_each_figure_from_the_batch_that_is_worse_in_it() -> None:
    one = measure(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.5]]))
    other = measure(torch.tensor([[100.0, NAN]]), torch.tensor([[101.0, NAN]]))
    both = worst(one, other)
    assert both.relative_l2 == one.relative_l2 > other.relative_l2
    assert both.max_abs == 1.0
    assert both.reference_nonfinite == 1


@pytest.mark.parametrize(
    ("reference", "other", "largest", "expected"),
    [
        ([1e-3, 1e-3], [1.1e-3, 1.1e-3], 1.0, (0.1, False)),
        ([1e-7, 1e-7], [1e-2, 1e-2], 1.0, (1e-2, True)),  # relative to the largest gradient, not to its own rounding
        ([0.0, 0.0], [0.0, 0.0], 1.0, (0.0, True)),
        ([0.0, 0.0], [0.5, 0.5], 0.0, (0.5, True)),  # no gradient anywhere: absolute
        ([0.0, 0.0], [NAN, 0.0], 1.0, (INF, False)),
    ],
)
def test_gradients_that_are_zero(
    reference: list[float], other: list[float], largest: float, expected: tuple[float, bool]
) -> None:
    figure, zero = gradient_figure(measure(torch.tensor(reference), torch.tensor(other)), largest)
    assert (figure, zero) == (pytest.approx(expected[0], rel=1e-4), expected[1])


def test_largest_rms_ignores_what_is_not_finite() -> None:
    tensors = [torch.tensor([3.0, 3.0]), torch.tensor([NAN]), torch.tensor([]), torch.tensor([-1.0])]
    assert largest_rms(tensors) == pytest.approx(3.0)
    assert largest_rms([]) == 0.0


def test_the_largest_rms_counts_a_complex_number_as_two() -> None:
    assert largest_rms([torch.full((4,), 3 + 4j), torch.ones(2)]) == pytest.approx(5)
