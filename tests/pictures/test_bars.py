"""Heights of bars by arithmetic."""

from __future__ import annotations

import math

import pytest

from precision_audit.pictures.bars import Bars, bars, shift_of
from precision_audit.records import InputError, Range
from tests.pictures.ranges import made

# 8 + 4 + 2 finite, 5 zeros and 1 NaN: 20 elements, 5 % each
MIXED = made({-30: 8, -20: 4, 3: 2}, zeros=5, nan=1)


@pytest.mark.parametrize(
    ("ranges", "shift", "expected"),
    [
        (MIXED, 0, Bars(20, 25.0, 5.0, ((-30, 40.0), (-20, 20.0), (3, 10.0)))),
        ([MIXED], 4, Bars(20, 25.0, 5.0, ((-26, 40.0), (-16, 20.0), (7, 10.0)))),
        ([MIXED], -1, Bars(20, 25.0, 5.0, ((-31, 40.0), (-21, 20.0), (2, 10.0)))),
        # two values: bins add up, and so do the elements they are shares of
        ([made({-30: 1}), made({-30: 2, 0: 1})], 0, Bars(4, 0.0, 0.0, ((-30, 75.0), (0, 25.0)))),
        (made({}, zeros=3, infinite=1), 0, Bars(4, 75.0, 25.0, ())),
        (made({-3: 0, 1: 2}), 0, Bars(2, 0.0, 0.0, ((1, 100.0),))),
        ([], 0, Bars(0, 0.0, 0.0, ())),
        (made({}), 5, Bars(0, 0.0, 0.0, ())),
    ],
)
def test_shares_of_all_elements(ranges: Range | list[Range], shift: int, expected: Bars) -> None:
    assert bars(ranges, shift) == expected


def test_no_element_is_lost() -> None:
    found = bars([MIXED, made({-149: 3, 127: 7}, zeros=11, nan=2, infinite=4)])
    assert math.isclose(found.zeros + found.lost + found.between(-math.inf, math.inf), 100)


def test_between_is_half_open_and_the_peak_the_highest_bar() -> None:
    found = bars(MIXED)
    assert [found.between(-30, -20), found.between(-29, -20), found.between(-20, 4)] == [40.0, 0.0, 30.0]
    assert found.peak == -30
    assert bars(made({-5: 2, 4: 2})).peak == -5


@pytest.mark.parametrize(("scale", "shift"), [(None, 0), (1.0, 0), (8.0, 3), (0.25, -2), (2.0**100, 100)])
def test_a_scale_moves_whole_bins(scale: float | None, shift: int) -> None:
    assert shift_of(scale) == shift


@pytest.mark.parametrize("scale", [0.0, -8.0, 1000.0, math.inf, math.nan])
def test_other_scales_are_refused(scale: float) -> None:
    with pytest.raises(InputError, match=r"expected a power of two"):
        shift_of(scale)
