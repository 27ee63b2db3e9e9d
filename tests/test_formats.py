"""The format table against the bit widths (exact fractions), against torch's own limits, and against torch's casts."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from precision_audit import formats
from precision_audit.formats import FORMATS, Format
from precision_audit.records import InputError

FLOATS = [name for name, row in FORMATS.items() if row.kind == "float"]
WITH_INFINITY = ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e5m2"]  # IEEE: the largest exponent is for inf and NaN
BLOCKS = [name for name, row in FORMATS.items() if row.kind == "block"]


def two(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def largest(row: Format) -> Fraction:
    """From the widths: top exponent, all mantissa bits set; one code less where that one is NaN."""
    assert row.exponent_bits is not None and row.mantissa_bits is not None and row.bias is not None
    ones = 2**row.exponent_bits - 1
    mantissa = 2**row.mantissa_bits - 1
    if row.name in WITH_INFINITY:
        ones -= 1
    elif row.name == "fp8_e4m3fn":
        mantissa -= 1
    return (1 + Fraction(mantissa, 2**row.mantissa_bits)) * two(ones - row.bias)


def largest_integer_run(row: Format) -> int:
    """Up to 2^(m+1) every integer has a code, unless the range ends before."""
    assert row.mantissa_bits is not None
    return min(2 ** (row.mantissa_bits + 1), math.floor(largest(row)))


@pytest.mark.parametrize("name", FLOATS)
def test_limits_of_a_float_follow_from_its_bit_widths(name: str) -> None:
    row = FORMATS[name]
    assert row.exponent_bits is not None and row.mantissa_bits is not None and row.bias is not None
    assert row.bits == 1 + row.exponent_bits + row.mantissa_bits
    assert Fraction(row.max_finite) == largest(row)
    assert Fraction(row.min_normal or 0) == two(1 - row.bias)
    assert Fraction(row.min_subnormal or 0) == two(1 - row.bias - row.mantissa_bits)
    assert Fraction(row.epsilon or 0) == two(-row.mantissa_bits)
    assert Fraction(row.unit_roundoff or 0) == two(-row.mantissa_bits - 1)
    assert row.consecutive == largest_integer_run(row)


@pytest.mark.parametrize("name", [n for n in FLOATS if FORMATS[n].dtype and n != "fp4_e2m1"])
def test_limits_of_a_float_are_those_of_torch(name: str) -> None:
    row, info = FORMATS[name], torch.finfo(formats.dtype_of(name))
    assert (info.max, info.smallest_normal, info.bits) == (row.max_finite, row.min_normal, row.bits)
    # torch counts two mantissa bits as three here
    assert info.eps == (0.125 if name == "fp8_e5m2fnuz" else row.epsilon)


@pytest.mark.parametrize("name", [n for n in FLOATS if FORMATS[n].overflow and n != "fp64"])
def test_torch_s_cast_overflows_and_underflows_as_stated(name: str) -> None:
    row = FORMATS[name]
    values = torch.tensor([row.max_finite * 4, row.min_subnormal, row.min_subnormal / 4], dtype=torch.float64)  # type: ignore[operator]
    over, smallest, under = values.to(formats.dtype_of(name)).double().tolist()
    assert {"inf": math.isinf(over), "nan": math.isnan(over), "max": over == row.max_finite}[row.overflow]
    assert (smallest, under) == (row.min_subnormal, 0.0)


@pytest.mark.parametrize("name", ["fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"])
def test_all_codes_of_an_eight_bit_float(name: str) -> None:
    row = FORMATS[name]
    values = torch.arange(256, dtype=torch.uint8).view(formats.dtype_of(name)).double()
    finite = values[values.isfinite()]
    assert (finite.max(), finite[finite > 0].min()) == (row.max_finite, row.min_subnormal)
    assert bool(values.isinf().any()) is row.inf and bool(values.isnan().any()) is row.nan
    assert bool(((values == 0) & values.signbit()).any()) is row.signed_zero


def test_a_scale_is_a_power_of_two_without_zero() -> None:
    row = FORMATS["e8m0"]
    values = torch.arange(255, dtype=torch.uint8).view(torch.float8_e8m0fnu).double()
    assert values.tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert (row.max_finite, row.min_normal, row.min_subnormal, row.signed_zero) == (2.0**127, 2.0**-127, None, False)


@pytest.mark.parametrize(("es", "name"), [(1, "posit16_es1"), (2, "posit16_es2")])
def test_limits_of_a_posit_follow_from_useed(es: int, name: str) -> None:
    useed = 2 ** (2**es)
    row = FORMATS[name]
    assert row.max_finite == float(useed) ** 14  # 16 bits: a sign, a regime of 15
    assert row.min_subnormal == float(useed) ** -14
    assert row.epsilon == 2.0 ** -(16 - 1 - 2 - es)  # at 1: sign, two bits of regime, es bits of exponent
    assert row.unit_roundoff == (row.epsilon or 0) / 2


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_format_is_its_element_and_its_scale(name: str) -> None:
    row = FORMATS[name]
    element, scale = FORMATS[row.element], FORMATS[row.scale]
    if row.block.isdigit():
        assert row.bits == element.bits + Fraction(int(scale.bits), int(row.block))
    # MXINT8 reads the code 127 as 127/64
    top = Fraction(127, 64) if name == "mxint8" else Fraction(element.max_finite)
    assert Fraction(row.max_finite) == pytest.approx(float(top * Fraction(scale.max_finite)), rel=1e-15)


def test_formats_have_the_names_that_reports_use() -> None:
    dtypes = {
        torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64",
        torch.float8_e4m3fn: "fp8_e4m3fn", torch.int64: "int64", torch.bool: "bool", torch.complex64: "complex64",
        torch.int8: "int8", torch.float8_e8m0fnu: "e8m0",
    }  # fmt: skip
    assert {dtype: formats.format_of(dtype) for dtype in dtypes} == dtypes
    assert [formats.dtype_of(name) for name in dtypes.values()] == list(dtypes)


@pytest.mark.parametrize(
    ("name", "size", "floating"),
    [("fp64", 8, True), ("fp32", 4, True), ("tf32", 4, True), ("bf16", 2, True), ("fp8_e4m3fn", 1, True),
     ("fp4_e2m1", 0.5, True), ("mxfp8_e4m3", 8.25 / 8, False), ("int64", 8, False), ("bool", 1, False),
     ("complex64", 8, False), ("e8m0", 1, False)],
)  # fmt: skip
def test_bytes_and_floats(name: str, size: float, floating: bool) -> None:
    assert formats.bytes_of(name) == size
    assert formats.is_float(name) is floating


@pytest.mark.parametrize("name", ["tf32", "fp99", "mxfp4"])
def test_a_format_without_a_dtype_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match=f"format '{name}'.*expected.*bf16") as caught:
        formats.dtype_of(name)
    assert "\n" not in str(caught.value)


def test_every_row_is_frozen_and_named_by_its_key() -> None:
    assert all(key == row.name for key, row in FORMATS.items())
    with pytest.raises(AttributeError):
        FORMATS["fp32"].max_finite = 1.0  # type: ignore[misc]
