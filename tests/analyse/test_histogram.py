"""Shares that a format loses, against torch's own casts, fractions and numbers worked out by hand."""

from __future__ import annotations

import itertools
import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from precision_audit.analyse.counting import counted
from precision_audit.analyse.histogram import limits, points, shares, shares_of
from precision_audit.analyse.streaming import Streamed
from precision_audit.formats import FORMATS, Format, custom, dtype_of, named
from precision_audit.records import InputError, Range

FP32 = st.integers(0, 2**32 - 1).map(lambda bits: struct.unpack("<f", struct.pack("<I", bits))[0])


def range_of(*batches: Tensor) -> Range:
    streamed = Streamed()
    for index, batch in enumerate(batches):
        streamed.add(counted(batch, points()), index)
    return streamed.range("x", "OBSERVED")


def near_limits(format: Format) -> Tensor:
    """Numbers on and beside what matters in a format, both signs, as fp32 numbers in fp64."""
    marks = [format.max_finite, *(x for x in (format.min_normal, format.min_subnormal) if x)]
    numbers = [0.0, 1.0, 1.3, 3.0]
    for mark in marks:
        for factor in (0.25, 0.5, 0.75, 1.0, 1.01, 1.0234375, 1.03125, 1.0625, 1.07, 1.125, 1.25, 1.5, 2.0):
            exact = torch.tensor(mark * factor, dtype=torch.float64).to(torch.float32).item()
            toward = [math.nan, math.nan]
            if math.isfinite(exact):
                pair = torch.nextafter(torch.tensor([exact, exact]), torch.tensor([0.0, math.inf]))
                toward = pair.tolist()
            numbers += [x for x in (exact, *toward) if math.isfinite(x)]
    return torch.tensor([*numbers, *(-x for x in numbers)], dtype=torch.float64)


CAST = ["bf16", "fp16", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz"]  # those whose cast shows what is beyond


@pytest.mark.parametrize("name", CAST)
def test_shares_are_what_torchs_cast_does(name: str) -> None:
    tensor = near_limits(FORMATS[name])
    cast = tensor.float().to(dtype_of(name)).float()
    fit = shares(range_of(tensor.float()), name)
    assert fit.exact
    assert fit.overflow * tensor.numel() == pytest.approx(int((~torch.isfinite(cast)).sum()), abs=1e-6)
    assert fit.underflow * tensor.numel() == pytest.approx(int(((cast == 0) & (tensor != 0)).sum()), abs=1e-6)


def test_fp32_shares_of_fp64_numbers() -> None:
    largest, tie = 2.0**128 - 2.0**104, 2.0**128 - 2.0**103
    numbers = [largest, math.nextafter(tie, 0), tie, 1e300, 2.0**-149, 2.0**-150, math.nextafter(2.0**-150, 1), 1e-300]
    tensor = torch.tensor(numbers, dtype=torch.float64)
    fit = shares(range_of(tensor), "fp32")
    assert (fit.overflow, fit.underflow, fit.exact) == (2 / 8, 2 / 8, True)
    cast = tensor.float()
    assert int(torch.isinf(cast).sum()) == 2 and int((cast == 0).sum()) == 2


# Per format: numbers, how many round beyond the largest, how many to zero (posits: are clipped, are raised).
HAND = [
    ("fp64", [1e308, 5e-324, 0.0], 0, 0),
    ("tf32", [2.0**128 - 2.0**116, 2.0**128 - 2.0**117, 2.0**-137, 2.0**-136], 1, 1),  # step 2**117 at the top
    ("fp8_e4m3fn", [448.0, 464.0, 464.5, 465.0, 2.0**-9, 2.0**-10, 2.0**-11, 0.0], 2, 2),  # 464 ties to 448, even
    ("fp6_e3m2", [28.0, 29.9, 30.0, 31.0, 0.0625, 0.03125, 0.0313, 0.0], 2, 1),  # step 4 at 28; smallest 1/16
    ("fp6_e2m3", [7.5, 7.74, 7.75, 8.0, 0.125, 0.0625, 0.07, 0.0], 2, 1),
    ("fp4_e2m1", [6.0, 6.9, 7.0, -8.0, 0.5, 0.25, 0.26, -0.1], 2, 2),
    ("e8m0", [2.0**127, 1.5 * 2.0**127, 2.0**-127, 2.0**-128], 1, 1),
    ("int8", [127.0, 127.4, 127.5, -130.0, 0.5, 0.6, 0.0, 1.0], 2, 1),
    ("posit16_es1", [2.0**28, 2.0**28 + 32, 2.0**29, 2.0**-28, 2.0**-29, 2.0**-40, 0.0, 1.0], 2, 2),
    ("posit16_es2", [2.0**56, 2.0**57, 2.0**-56, 2.0**-56 * 0.99, -(2.0**-60), 0.0, 1.0, 3.0], 1, 2),
]


@pytest.mark.parametrize(("name", "numbers", "beyond", "vanished"), HAND, ids=[row[0] for row in HAND])
def test_shares_worked_out_by_hand(name: str, numbers: list[float], beyond: int, vanished: int) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float64)
    fit = shares(range_of(tensor), name)
    assert (fit.overflow, fit.underflow, fit.exact) == (beyond / len(numbers), vanished / len(numbers), True)
    direct = shares_of(tensor, name)
    assert (direct.overflow, direct.underflow) == (beyond / len(numbers), vanished / len(numbers))


def test_every_row_of_the_table_is_covered() -> None:
    blocks = {name for name, row in FORMATS.items() if row.kind == "block"}
    assert {*CAST, "fp32", *(row[0] for row in HAND), *blocks} == set(FORMATS)
    assert blocks == {*BLOCKS, *OTHER_BLOCKS}


def number_of(code: int, mantissa_bits: int, bias: int) -> Fraction:
    exponent, mantissa = divmod(code, 2**mantissa_bits)
    scale = Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)
    return (mantissa + (2**mantissa_bits if exponent else 0)) * scale


def rounds_to(x: Fraction, numbers: list[Fraction]) -> int:
    """Index of the nearest number, ties to the even one; `numbers` are those of consecutive codes."""
    return min(range(len(numbers)), key=lambda i: (abs(numbers[i] - x), i % 2))


WIDTHS = st.tuples(st.integers(2, 4), st.integers(1, 3), st.integers(-2, 9), st.booleans())


@settings(max_examples=150, deadline=None)
@given(WIDTHS, st.data())
def test_formats_of_the_users_own(widths: tuple[int, int, int, bool], data: st.DataObject) -> None:
    exponent_bits, mantissa_bits, bias, inf = widths
    format = custom("own", exponent_bits=exponent_bits, mantissa_bits=mantissa_bits, bias=bias, inf=inf)
    codes = 2 ** (exponent_bits + mantissa_bits) - (2**mantissa_bits if inf else 1)  # of finite numbers from zero up
    numbers = [number_of(code, mantissa_bits, bias) for code in range(codes + 1)]  # and the next one, beyond
    assert Fraction(format.max_finite) == numbers[-2]
    assert format.min_subnormal is not None and Fraction(format.min_subnormal) == numbers[1]
    edges = [*numbers, *((one + other) / 2 for one, other in itertools.pairwise(numbers))]
    chosen = [float(x) for x in data.draw(st.lists(st.sampled_from(edges), min_size=1, max_size=8))]
    chosen += [math.nextafter(x, data.draw(st.sampled_from([0.0, math.inf]))) for x in chosen]
    tensor = torch.tensor(chosen, dtype=torch.float64)
    rounded = [rounds_to(Fraction(x), numbers) for x in chosen]
    over = sum(index == codes for index in rounded) / len(chosen)
    under = sum(index == 0 and x != 0 for index, x in zip(rounded, chosen, strict=True)) / len(chosen)
    direct = shares_of(tensor, format)
    assert (direct.overflow, direct.underflow) == pytest.approx((over, under), abs=1e-12)
    found = shares(range_of(tensor), format)
    assert found.underflow == pytest.approx(under, abs=1e-12)
    if inf:  # without infinities the last mantissa is not all ones, which a histogram resolves only where listed
        assert found.exact
    assert found.overflow == pytest.approx(over, abs=1e-12) if found.exact else found.overflow >= over


@settings(max_examples=60, deadline=None)
@given(st.lists(FP32, min_size=1, max_size=16), st.sampled_from(sorted(set(FORMATS) - {"fp64"})))
def test_histogram_and_tensor_agree(numbers: list[float], name: str) -> None:
    if FORMATS[name].kind == "block":
        return
    tensor = torch.tensor(numbers, dtype=torch.float32)
    found, direct = shares(range_of(tensor), name), shares_of(tensor, name)
    assert found.exact and (found.overflow, found.underflow) == (direct.overflow, direct.underflow)


def test_a_wide_format_of_the_users_own_gives_a_bound_and_says_so() -> None:
    wide = custom("e5m9", exponent_bits=5, mantissa_bits=9, bias=15)  # beyond from 65536 - 32 on
    tensor = torch.tensor([65500.0, 65504.0, 65535.0, 1.0])
    assert shares_of(tensor, wide).overflow == 2 / 4
    bound = shares(range_of(tensor), wide)
    assert not bound.exact and bound.overflow == 3 / 4
    streamed = Streamed()
    streamed.add(counted(tensor, points((wide,))), 0)
    assert shares(streamed.range("x", "OBSERVED"), wide).overflow == 2 / 4


# Per format with powers of two as scales: numbers of one block, the largest between 4 and 8; how many are clipped, how
# many become zero. The scale is 2**2 over the largest power of two of the element's format.
BLOCKS = {
    "mxfp8_e4m3": ([6.0, 2.0**-16, 2.0**-18], 0, 2),  # scale 2**2 / 2**8: zero up to 2**-10 * 2**-6, a tie
    "mxfp8_e5m2": ([6.0, 2.0**-30, 1.1 * 2.0**-30], 0, 1),  # scale 2**2 / 2**15: 2**-17 * 2**-13
    "mxfp6_e3m2": ([7.5, 0.0625, 2.0**-8], 1, 1),  # scale 2**2 / 2**4: 7.5 * 4 = 30, beyond; zero up to 2**-7
    "mxfp6_e2m3": ([7.75, 2.0**-4, 0.07], 1, 1),  # scale 1
    "mxfp4": ([7.0, 0.25, 0.26], 1, 1),  # scale 1
    "mxint8": ([7.99, 0.03125, 0.04], 1, 1),  # scale 4: 7.99 / 4 = 1.9975 > 127.5 / 64; zero up to 4 / 128
}
OTHER_BLOCKS = {"nvfp4": 3, "fp8_blockwise_128": 1, "fp8_tensorwise": 2, "fp8_rowwise": 1}


@pytest.mark.parametrize("name", BLOCKS)
def test_one_block_of_a_microscaling_format(name: str) -> None:
    numbers, beyond, vanished = BLOCKS[name]
    tensor = torch.tensor(numbers)
    direct = shares_of(tensor, name)
    assert (direct.overflow, direct.underflow) == (beyond / 3, vanished / 3)
    found = shares(range_of(tensor), name)  # one block: the same scale for all
    assert (found.overflow, found.underflow, found.exact) == (beyond / 3, vanished / 3, True)
    assert "one scale" in found.note


def test_blocks_have_scales_of_their_own() -> None:
    tensor = torch.full((1, 64), 0.01)
    tensor[0, 0] = 700.0  # its block of 32 keeps nothing of 0.01, the other block all of it
    direct = shares_of(tensor, "mxfp4")  # 2**(9 - 2) = 128: zero up to 32
    assert (direct.overflow, direct.underflow) == (0.0, 31 / 64)
    assert shares(range_of(tensor), "mxfp4").underflow == 63 / 64
    assert shares_of(tensor[:, :40], "mxfp4").underflow == 31 / 40  # a last block that is shorter


@pytest.mark.parametrize(("name", "vanished"), OTHER_BLOCKS.items())
def test_scales_that_are_no_powers_of_two(name: str, vanished: int) -> None:
    # 448 in the first row: scale 1, zero up to 2**-10. Second row: largest 1, so scale 1/448 and zero up to 2e-6.
    tensor = torch.tensor([[448.0, 2.0**-11, 1.0], [1.0, 2.0**-11, 0.5]])
    direct = shares_of(tensor, name)
    assert direct.overflow == 0.0
    # nvfp4: block scale 448/6, zero up to 448/24 = 18.7, takes two of the first row; 2**-11 of the second, zero to 1/24
    assert direct.underflow == vanished / 6
    found = shares(range_of(tensor), name)
    assert found.underflow >= (2 / 6 if name != "nvfp4" else 5 / 6) and found.overflow == 0.0


def test_shares_count_all_batches_and_all_elements() -> None:
    value = range_of(torch.tensor([1e5, 1.0]), torch.tensor([math.nan, math.inf, 1e-9, 70000.0]))
    fit = shares(value, "fp16")
    assert (fit.overflow, fit.underflow) == (2 / 6, 1 / 6)


def test_nothing_seen_loses_nothing() -> None:
    assert shares(range_of(torch.zeros(0)), "fp16") == shares(range_of(torch.zeros(3)), "fp16")
    assert shares(range_of(torch.zeros(3)), "mxfp4").underflow == 0.0


def test_points_are_the_thresholds_between_counted_elements() -> None:
    # fp16 65504 + 16; bf16, tf32 and fp32 half a step below 2**128; fp8_e4m3fn just above its tie
    assert points() == (
        math.nextafter(464.0, 500.0),
        65520.0,
        2.0**128 - 2.0**119,
        2.0**128 - 2.0**116,
        2.0**128 - 2.0**103,
    )


@pytest.mark.parametrize("name", [name for name, row in FORMATS.items() if row.kind == "float" and name != "fp64"])
def test_limits_by_fractions(name: str) -> None:
    row = FORMATS[name]
    assert row.min_subnormal is not None and row.mantissa_bits is not None
    exponent = math.floor(math.log2(row.max_finite))
    tie = Fraction(row.max_finite) + Fraction(2) ** (exponent - row.mantissa_bits) / 2
    even = (Fraction(row.max_finite) / Fraction(2) ** (exponent - row.mantissa_bits)) % 2 == 0
    found = limits(row)
    assert Fraction(found.underflow) == Fraction(row.min_subnormal) / 2
    assert Fraction(found.overflow) == tie if not even else found.overflow == math.nextafter(float(tie), math.inf)


@pytest.mark.parametrize(
    ("text", "largest", "smallest"),
    [
        ("e5m3", 61440.0, 2.0**-17),
        ("e5m3b12", 61440.0 * 8, 2.0**-14),
        ("e4m3fn", 448.0, 2.0**-9),
        ("e3m0", 8.0, 0.25),
        ("fp16", 65504.0, 2.0**-24),
    ],
)
def test_formats_by_name(text: str, largest: float, smallest: float) -> None:
    assert (named(text).max_finite, named(text).min_subnormal) == (largest, smallest)


@pytest.mark.parametrize("name", ["fp64", "fp32", "bf16", "fp16", "fp8_e4m3fn", "fp8_e5m2"])
def test_the_tables_own_formats_by_their_widths(name: str) -> None:
    row = FORMATS[name]
    assert row.exponent_bits is not None and row.mantissa_bits is not None
    widths = {"exponent_bits": row.exponent_bits, "mantissa_bits": row.mantissa_bits, "bias": row.bias}
    made = custom(name, **widths, inf=row.inf)
    for field in ("max_finite", "min_normal", "min_subnormal", "epsilon", "unit_roundoff", "consecutive", "bits"):
        assert getattr(made, field) == getattr(row, field), field


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fp17", "did you mean 'fp16'"),
        ("e1m3", "1 exponent bits; expected 2 to 11"),
        ("e5m60", "60 mantissa bits; expected 0 to 52"),
        ("e5m3b99999", "beyond the range of fp64"),
        ("e11m52b0", "beyond the range of fp64"),
        ("zzzzzz", "use one of fp64"),
    ],
)
def test_formats_that_are_none(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        named(text)
    assert said in str(error.value) and repr(text) in str(error.value) and "\n" not in str(error.value)
