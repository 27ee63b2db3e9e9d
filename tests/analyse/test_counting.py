"""Counts of a tensor against numpy and exact fractions: extremes, powers of two, leading ones, every layout."""

from __future__ import annotations

import math
import struct
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from precision_audit.analyse.counting import Counts, counted

FP32 = st.integers(0, 2**32 - 1).map(lambda bits: struct.unpack("<f", struct.pack("<I", bits))[0])
FORMATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


def power_of(number: float) -> int:
    """Largest e with 2**e <= number, by exact fractions."""
    exact = Fraction(number)
    e = exact.numerator.bit_length() - exact.denominator.bit_length()
    return e if Fraction(2) ** e <= exact else e - 1


def _is_fp16(x: float) -> bool:
    """By struct, which raises where the number is too large."""
    try:
        return math.isnan(x) or struct.unpack("<e", struct.pack("<e", x))[0] == x
    except OverflowError:
        return False


def _is_bf16(x: float) -> bool:
    """Whether it is an fp32 number whose lower half is zero."""
    try:
        packed = struct.pack("<f", x)
    except OverflowError:
        return False
    return math.isnan(x) or (struct.unpack("<f", packed)[0] == x and packed[:2] == b"\0\0")


def assert_equal(found: Counts, numbers: list[float]) -> None:
    finite = [x for x in numbers if math.isfinite(x)]
    present = [abs(x) for x in finite if x != 0]
    powers = Counter(power_of(x) for x in present)
    assert found.count == len(numbers)
    assert found.nan == sum(math.isnan(x) for x in numbers)
    assert found.infinite == sum(math.isinf(x) for x in numbers)
    assert found.negative_infinite == sum(x == -math.inf for x in numbers)
    assert found.zeros == len(finite) - len(present)
    assert found.amax == max((abs(x) for x in finite), default=-1.0)
    assert found.smallest == min(present, default=math.inf)
    assert found.lowest == min(finite, default=math.inf) and found.highest == max(finite, default=-math.inf)
    assert found.whole == all(x == int(x) for x in finite)
    fits = {"fp16": all(map(_is_fp16, numbers)), "bf16": all(map(_is_bf16, numbers))}
    assert found.held == {name for name, held in fits.items() if held}
    rows = {found.first + i: row for i, row in enumerate(found.table.tolist()) if any(row)}
    assert {e: row[0] for e, row in rows.items()} == dict(powers)
    for e, row in rows.items():
        mine = [Fraction(x) / Fraction(2) ** e for x in present if power_of(x) == e]
        assert row[1] == sum(x == 1 for x in mine)
        assert row[2:] == [sum(x >= 2 - Fraction(1, 2**j) for x in mine) for j in range(1, 8)]


@settings(max_examples=200, deadline=None)
@given(st.lists(FP32, max_size=20))
def test_any_bit_pattern_of_fp32(numbers: list[float]) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float32)
    assert_equal(counted(tensor), [float(x) for x in tensor])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(), max_size=20))
def test_any_number_of_fp64(numbers: list[float]) -> None:
    assert_equal(counted(torch.tensor(numbers, dtype=torch.float64)), numbers)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_every_number_of_a_small_format(dtype: torch.dtype) -> None:
    size = torch.empty((), dtype=dtype).element_size()
    if size == 1:
        tensor = torch.arange(256, dtype=torch.int64).to(torch.uint8).view(dtype)
    elif size == 2:
        tensor = torch.arange(-(2**15), 2**15, 37, dtype=torch.int64).to(torch.int16).view(dtype)
    else:
        tensor = torch.tensor([0.0, 1.5, -(2.0**-130), 2.0**-149, 3.0, -448.0, math.inf, math.nan], dtype=dtype)
    assert_equal(counted(tensor), tensor.double().tolist())


def layouts() -> dict[str, Tensor]:
    base = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    base[0, 0, 0, 0] = 0.0
    return {
        "contiguous": base,
        "channels_last": base.to(memory_format=torch.channels_last),
        "permuted": base.permute(3, 0, 2, 1),
        "sliced": base[:, ::2, :, 1:],
        "expanded": base[:, :1].expand(3, 7, 5, 6),
        "expanded scalar": torch.tensor(-3.0).expand(4, 5),
        "scalar": torch.tensor(2.0),
        "empty": base[:0],
        "narrow in the middle": base[1],
        "one element of many": base[1:2, 2:3, 3:4, 4:5],
        "negated view": torch.view_as_complex(torch.randn(6, 2)).conj().imag,
        "sparse": torch.eye(3).to_sparse(),
        "requires grad": base.clone().requires_grad_(),
    }


@pytest.mark.parametrize("name", layouts())
def test_every_layout(name: str) -> None:
    tensor = layouts()[name]
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    assert_equal(counted(tensor), dense.double().flatten().tolist())


def test_more_than_one_chunk_with_everything_in_it() -> None:
    tensor = torch.randn(600_000, generator=torch.Generator().manual_seed(1))
    tensor[::7] = 0.0
    tensor[123_456] = math.inf
    tensor[400_000] = -math.inf
    tensor[599_999] = math.nan
    tensor[300_001] = 2.0**-140
    found = counted(tensor)
    numbers = tensor.numpy().astype(np.float64)
    finite = np.abs(numbers[np.isfinite(numbers)])
    exponents = np.frexp(finite[finite > 0])[1] - 1
    expected = dict(zip(*(each.tolist() for each in np.unique(exponents, return_counts=True)), strict=True))
    assert {found.first + i: n for i, n in enumerate(found.table[:, 0].tolist()) if n} == expected
    assert (found.nan, found.infinite, found.negative_infinite) == (1, 2, 1)
    assert found.zeros == int((finite == 0).sum())
    assert (found.smallest, found.amax) == (2.0**-140, float(finite.max()))


def test_points_split_the_power_of_two_that_holds_them() -> None:
    # 65520 = fp16's largest number 65504 plus half its step of 32; its power of two is [32768, 65536)
    tensor = torch.tensor([65519.996, 65520.0, -65535.0, 65536.0, 40000.0, 1.0])
    assert counted(tensor, (65520.0,)).splits == {65520.0: 2}
    assert counted(torch.tensor([65519.996, 40000.0]), (65520.0,)).splits == {65520.0: 0}
    assert counted(torch.tensor([1.0, 1e9]), (65520.0,)).splits == {}
    assert counted(torch.tensor([65520.0]).expand(5), (65520.0,)).splits == {65520.0: 5}
    just_above = math.nextafter(464.0, math.inf)  # no fp32 number lies between
    assert counted(torch.tensor([464.0, 464.00003, 500.0, 300.0]), (just_above,)).splits == {just_above: 2}


@settings(max_examples=50, deadline=None)
@given(st.lists(FP32, max_size=12), st.lists(FP32, max_size=12))
def test_counts_of_two_batches_add_up_to_those_of_both(first: list[float], second: list[float]) -> None:
    one, other = torch.tensor(first, dtype=torch.float32), torch.tensor(second, dtype=torch.float32)
    merged = counted(one, (65520.0,))
    merged.merge(counted(other, (65520.0,), known=merged.smallest, fraction=not merged.whole))
    both = torch.cat((one, other))
    merged.whole = merged.whole and all(float(x).is_integer() for x in both if math.isfinite(x))
    assert_equal(merged, both.double().tolist())
    split = sum(65520.0 <= abs(x) < 65536.0 for x in both.tolist())
    assert merged.splits.get(65520.0, 0) == split


def test_the_tensor_is_left_alone() -> None:
    tensor = torch.tensor([1.5, -2.0, 0.0])
    version = tensor._version
    counted(tensor, (1.75,))
    assert tensor.tolist() == [1.5, -2.0, 0.0] and tensor._version == version
