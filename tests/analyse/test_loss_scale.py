"""Loss scales of distributions made by hand: what they must be follows from the powers of two they were made of."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from precision_audit.analyse.counting import counted
from precision_audit.analyse.histogram import points
from precision_audit.analyse.streaming import Streamed
from precision_audit.analyse.training.loss_scale import bands, idle, loss_scale, noise, scaled, vanishing
from precision_audit.formats import FORMATS
from precision_audit.records import LossScale, Range

FP16, BF16 = FORMATS["fp16"], FORMATS["bf16"]


def seen(values: Tensor, name: str = "g") -> Range:
    streamed = Streamed()
    streamed.add(counted(values, points()), 0)
    return streamed.range(name, "OBSERVED")


def scale_of(*values: Tensor) -> LossScale:
    found = loss_scale([seen(each, f"g{i}") for i, each in enumerate(values)], FP16)
    assert found is not None
    return found


def powers(counts: dict[int, int]) -> Tensor:
    """n numbers in the middle of [2**e, 2**(e+1)) for every e."""
    return torch.tensor([1.5 * 2.0**exponent for exponent, n in counts.items() for _ in range(n)], dtype=torch.float64)


def test_the_distribution_of_the_2018_paper_needs_eight() -> None:
    """SSD: two thirds zeros, a long tail down to 2^-60, 5 % from 2^-27 to 2^-24, the rest up to 2^-9."""
    tail = {exponent: 3 for exponent in range(-60, -27)}
    body = {-27: 20, -26: 20, -25: 20} | {exponent: 60 for exponent in range(-24, -8)}
    found = scale_of(torch.cat([powers(tail | body), torch.zeros(2400, dtype=torch.float64)]))
    assert found.sufficient == 8
    assert found.safe == 2.0 ** math.floor(math.log2(65504 / 2 / (1.5 * 2.0**-9)))
    assert found.fits and found.sufficient <= found.recommended <= found.safe
    split = bands([seen(powers(tail | body))], FP16)
    total = 99 + 60 + 960
    assert split.dropped == pytest.approx(99 / total)
    assert split.lost == pytest.approx(60 / total)
    assert split.held == pytest.approx(960 / total)


@pytest.mark.parametrize(("least", "needed"), [(-27, 8), (-26, 4), (-25, 2), (-24, 1), (-14, 1)])
def test_the_smallest_that_matters_decides(least: int, needed: float) -> None:
    assert scale_of(powers({least: 10, -10: 10})).sufficient == needed


def test_gradients_between_1e9_and_1e7_become_normal() -> None:
    for values in (torch.linspace(1e-9, 1e-7, 10001), torch.logspace(-9, -7, 10001)):
        found = scale_of(values)
        lifted = values.double() * found.recommended
        assert (lifted >= 2.0**-14).double().mean() >= 0.99
        assert lifted.max() * found.margin <= 65504 and found.vanish > 0 and found.vanish_scaled == 0


@pytest.mark.parametrize("largest", [1e3, 5e4, 1e6, 1e20])
def test_large_gradients_do_not_overflow(largest: float) -> None:
    found = scale_of(torch.tensor([largest, largest / 8]))
    assert largest * found.safe * 2 <= 65504 < largest * found.safe * 4
    assert found.recommended <= found.safe and (found.safe < 1) == (largest > 65504 / 2)


def test_a_loss_that_is_small_as_a_whole_needs_more_than_eight() -> None:
    """All below 2^-27: they matter, since there are no others."""
    found = scale_of(powers({-40: 100}))
    assert found.sufficient == 2.0**16  # 2^-40 to 2^-24
    assert found.vanish == 1 and found.vanish_scaled == 0


def test_two_modes() -> None:
    """The lower one counts from 2^-27 on, however little it carries."""
    assert scale_of(powers({-26: 500, -4: 500})).sufficient == 4
    assert scale_of(powers({-30: 500, -4: 500})).sufficient == 1


def test_log_normal_gradients() -> None:
    values = torch.exp(torch.randn(20000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 - 14)
    found = scale_of(values)
    half = (values * found.recommended).to(torch.float16)
    assert torch.isfinite(half).all()
    direct = ((values.to(torch.float16) == 0) & (values != 0)).double().mean().item()
    assert found.vanish == pytest.approx(direct, abs=1e-12)
    assert found.vanish_scaled == pytest.approx((half == 0).double().mean().item(), abs=1e-12)


def test_one_huge_outlier_leaves_no_scale() -> None:
    found = scale_of(powers({-26: 1000}), torch.tensor([1e5]))
    assert found.sufficient == 4 and found.safe == 0.25 and not found.fits
    assert found.sufficient_for == "g0" and found.safe_for == "g1" and found.recommended == found.safe


def test_zeros_and_nan() -> None:
    assert loss_scale([seen(torch.zeros(10))], FP16) is None
    assert loss_scale([], FP16) is None
    found = scale_of(torch.tensor([math.nan, math.inf, 1.0, 0.0]))
    assert found.sufficient == 1 and found.safe == 2.0**14  # of the 1.0 alone: 2 * 2^14 is the last below 65504


def test_bf16_needs_none() -> None:
    found = loss_scale([seen(torch.logspace(-30, 3, 1000, dtype=torch.float64))], BF16)
    assert found is not None and found.sufficient == 1 and found.vanish == 0 and found.recommended >= 1


def test_a_gradient_that_is_zero_but_for_rounding() -> None:
    ranges = [seen(powers({-10: 50}), "weight"), seen(powers({-31: 50}), "bias"), seen(powers({-20: 50}), "small")]
    assert noise(ranges) == {"bias"}
    assert noise([]) == frozenset()


@given(
    st.lists(st.floats(2.0**-60, 2.0**20, width=32), min_size=1, max_size=50),
    st.integers(-20, 20),
)
def test_scaling_a_range_is_scaling_its_numbers(numbers: list[float], shift: int) -> None:
    values = torch.tensor(numbers, dtype=torch.float64)
    direct, shifted = seen(values * 2.0**shift), scaled(seen(values), 2.0**shift)
    for name in ("count", "zeros", "amax", "smallest", "lowest", "highest", "histogram", "powers", "upper"):
        assert getattr(direct, name) == getattr(shifted, name)
    half = (values * 2.0**shift).to(torch.float16)  # by way of fp32, which holds these exactly
    assert vanishing([seen(values)], FP16, 2.0**shift) == pytest.approx((half == 0).double().mean().item())


def test_an_activation_that_moves_nothing_is_idle() -> None:
    """Gradient times activation: 2^-35 of the largest is rounding, 2^-22 is a branch with a small scale."""
    activations = [seen(powers({0: 50}), name) for name in ("stream", "mean", "branch")]
    gradients = [
        seen(powers({exponent: 50}), name) for name, exponent in (("stream", -5), ("mean", -40), ("branch", -27))
    ]
    assert idle(gradients, activations) == {"mean"}
    assert idle(gradients, []) == frozenset()  # nothing is known of what they are the gradient of
