"""The number formats: what each can hold.

Gives one frozen `Format` row per format, with exact limits, and the names by which the rest of the package speaks of
torch's dtypes. A limit is a literal, not a formula, so that it can be checked against the bit widths: the tests do that
with exact fractions. Never measures, never converts a tensor.

Kinds: `float` (sign, exponent, mantissa), `scale` (a power of two, no sign, no zero), `block` (elements that share a
scale), `integer`, `posit`. Formats without a torch dtype exist for limits and reports only: tf32 is how a matrix unit
reads fp32, fp6 and the block formats live in packed tensors. Integers, booleans and complex numbers have no row (int8
excepted, which quantised models use as a format) and go by torch's own name.

To add a format, add a row. A format of the user's own needs none: `custom` makes the row from its widths, `named` reads
it from text such as `e5m3`, `e5m3b12` (bias 12) or `e4m3fn` (no infinities, one NaN).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache

import torch

from precision_audit.records import InputError


@dataclass(frozen=True, slots=True)
class Format:
    """One number format. `bits` per element, scales of blocks included. `epsilon` is the spacing just above 1,
    `consecutive` the largest n such that all integers 0…n are exact. `overflow` is what torch's cast makes of a value
    beyond the largest: `inf`, `nan` or `max` (saturates), "" where torch has no cast. Sizes in `block` are elements."""

    name: str
    kind: str
    bits: float
    exponent_bits: int | None = None
    mantissa_bits: int | None = None
    bias: int | None = None
    max_finite: float = 0.0
    min_normal: float | None = None
    min_subnormal: float | None = None
    epsilon: float | None = None
    unit_roundoff: float | None = None
    consecutive: int | None = None
    inf: bool = False
    nan: bool = False
    signed_zero: bool = False
    overflow: str = ""
    dtype: str = ""  # torch's name
    element: str = ""
    block: str = ""
    scale: str = ""
    note: str = ""


# Values that torch cannot hold exactly as a decimal literal are written as powers of two, which are exact in fp64.
_ROWS = (
    Format("fp64", "float", 64, 11, 52, 1023, 1.7976931348623157e308, 2.0**-1022, 2.0**-1074, 2.0**-52, 2.0**-53,
           2**53, True, True, True, "inf", "float64"),
    Format("fp32", "float", 32, 8, 23, 127, 3.4028234663852886e38, 2.0**-126, 2.0**-149, 2.0**-23, 2.0**-24,
           2**24, True, True, True, "inf", "float32"),
    Format("tf32", "float", 19, 8, 10, 127, 3.4011621342146535e38, 2.0**-126, 2.0**-136, 2.0**-10, 2.0**-11,
           2**11, True, True, True,
           note="how tensor cores read fp32: stored in 32 bits, products summed in fp32; subnormals as the widths say"),
    Format("bf16", "float", 16, 8, 7, 127, 3.3895313892515355e38, 2.0**-126, 2.0**-133, 2.0**-7, 2.0**-8,
           2**8, True, True, True, "inf", "bfloat16"),
    Format("fp16", "float", 16, 5, 10, 15, 65504.0, 2.0**-14, 2.0**-24, 2.0**-10, 2.0**-11,
           2**11, True, True, True, "inf", "float16"),
    Format("fp8_e4m3fn", "float", 8, 4, 3, 7, 448.0, 2.0**-6, 2.0**-9, 2.0**-3, 2.0**-4,
           2**4, False, True, True, "max", "float8_e4m3fn",
           note="the cast made NaN of values beyond 448 before torch 2.12"),
    Format("fp8_e4m3fnuz", "float", 8, 4, 3, 8, 240.0, 2.0**-7, 2.0**-10, 2.0**-3, 2.0**-4,
           2**4, False, True, False, "nan", "float8_e4m3fnuz"),
    Format("fp8_e5m2", "float", 8, 5, 2, 15, 57344.0, 2.0**-14, 2.0**-16, 2.0**-2, 2.0**-3,
           2**3, True, True, True, "inf", "float8_e5m2"),
    Format("fp8_e5m2fnuz", "float", 8, 5, 2, 16, 57344.0, 2.0**-15, 2.0**-17, 2.0**-2, 2.0**-3,
           2**3, False, True, False, "nan", "float8_e5m2fnuz",
           note="torch.finfo gives eps 0.125; two mantissa bits make it 0.25"),
    Format("fp6_e3m2", "float", 6, 3, 2, 3, 28.0, 2.0**-2, 2.0**-4, 2.0**-2, 2.0**-3, 2**3, False, False, True,
           note="OCP MX v1.0"),
    Format("fp6_e2m3", "float", 6, 2, 3, 1, 7.5, 1.0, 2.0**-3, 2.0**-3, 2.0**-4, 7, False, False, True,
           note="OCP MX v1.0; 7.5 ends the range before the mantissa does"),
    Format("fp4_e2m1", "float", 4, 2, 1, 1, 6.0, 1.0, 0.5, 0.5, 0.25, 4, False, False, True,
           dtype="float4_e2m1fn_x2", note="OCP MX v1.0; torch packs two in a byte and has no cast"),
    Format("e8m0", "scale", 8, 8, 0, 127, 2.0**127, 2.0**-127, None, 1.0, nan=True, overflow="nan",
           dtype="float8_e8m0fnu", note="powers of two only, no sign, no zero: scale of a block"),
    Format("int8", "integer", 8, max_finite=127.0, consecutive=127, dtype="int8", note="-128 to 127, uniform step"),
    Format("posit16_es1", "posit", 16, max_finite=2.0**28, min_subnormal=2.0**-28, epsilon=2.0**-12,
           unit_roundoff=2.0**-13, nan=True, note="tapered: 12 fraction bits at 1, none at the ends; saturates"),
    Format("posit16_es2", "posit", 16, max_finite=2.0**56, min_subnormal=2.0**-56, epsilon=2.0**-11,
           unit_roundoff=2.0**-12, nan=True, note="Posit Standard 2022; 11 fraction bits at 1; saturates"),
    Format("mxfp8_e4m3", "block", 8.25, max_finite=448.0 * 2.0**127, nan=True,
           element="fp8_e4m3fn", block="32", scale="e8m0", note="OCP MX v1.0"),
    Format("mxfp8_e5m2", "block", 8.25, max_finite=57344.0 * 2.0**127, nan=True,
           element="fp8_e5m2", block="32", scale="e8m0", note="OCP MX v1.0"),
    Format("mxfp6_e3m2", "block", 6.25, max_finite=28.0 * 2.0**127, nan=True,
           element="fp6_e3m2", block="32", scale="e8m0", note="OCP MX v1.0"),
    Format("mxfp6_e2m3", "block", 6.25, max_finite=7.5 * 2.0**127, nan=True,
           element="fp6_e2m3", block="32", scale="e8m0", note="OCP MX v1.0"),
    Format("mxfp4", "block", 4.25, max_finite=6.0 * 2.0**127, nan=True,
           element="fp4_e2m1", block="32", scale="e8m0", note="OCP MX v1.0"),
    Format("mxint8", "block", 8.25, max_finite=1.984375 * 2.0**127, nan=True,
           element="int8", block="32", scale="e8m0", note="OCP MX v1.0; codes are read as code / 64"),
    Format("nvfp4", "block", 4.5, max_finite=6.0 * 448.0, nan=True, element="fp4_e2m1", block="16",
           scale="fp8_e4m3fn", note="NVIDIA; usually a further fp32 scale per tensor, not counted in the limit"),
    Format("fp8_blockwise_128", "block", 8 + 32 / 128, max_finite=448.0 * 3.4028234663852886e38, nan=True,
           element="fp8_e4m3fn", block="1x128, weights 128x128", scale="fp32"),
    Format("fp8_tensorwise", "block", 8.0, max_finite=448.0 * 3.4028234663852886e38, nan=True,
           element="fp8_e4m3fn", block="tensor", scale="fp32", note="fp8_e5m2 for gradients"),
    Format("fp8_rowwise", "block", 8.0, max_finite=448.0 * 3.4028234663852886e38, nan=True,
           element="fp8_e4m3fn", block="row or column", scale="fp32"),
)  # fmt: skip

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}

_BY_DTYPE = {row.dtype: row.name for row in _ROWS if row.dtype}
_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}

_WIDTHS = re.compile(r"e(\d{1,4})m(\d{1,4})(?:b(-?\d{1,5}))?(fn)?")


def named(text: str) -> Format:
    """The format of that name: a row of the table, or one given by its widths (`e5m3`, `e5m3b12`, `e4m3fn`)."""
    row = FORMATS.get(text)
    if row is not None:
        return row
    widths = _WIDTHS.fullmatch(text)
    if widths is None:
        near = difflib.get_close_matches(text, FORMATS, 1)
        use = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(FORMATS)}"
        raise InputError(
            f"format {text!r}: no such format; expected a known name or widths such as e5m3 or e5m3b15 "
            f"(exponent bits, mantissa bits, bias); {use}"
        )
    exponent_bits, mantissa_bits, bias, finite = widths.groups()
    return custom(
        text,
        exponent_bits=int(exponent_bits),
        mantissa_bits=int(mantissa_bits),
        bias=None if bias is None else int(bias),
        inf=finite is None,
    )


def custom(name: str, *, exponent_bits: int, mantissa_bits: int, bias: int | None = None, inf: bool = True) -> Format:
    """A floating-point format with a sign, subnormals and round to nearest even; `bias` is IEEE's where not given.

    With `inf` the highest exponent holds infinities and NaN, as in IEEE 754. Without, it holds numbers too and only the
    last code of all is NaN, as in fp8_e4m3fn. Raises InputError where the widths make none, or one wider than fp64.
    """
    if bias is None and 2 <= exponent_bits <= 11:
        bias = 2 ** (exponent_bits - 1) - 1
    last = 2**exponent_bits - (2 if inf else 1) if exponent_bits <= 11 else 0  # highest exponent code of a number
    _check_widths(name, exponent_bits, mantissa_bits, bias, last)
    assert bias is not None
    if not inf and mantissa_bits == 0:
        last -= 1  # the last code is NaN, and nothing else has that exponent
    steps = 2 if inf or mantissa_bits == 0 else 3  # codes from the highest number up to twice its power of two
    largest = (2 ** (mantissa_bits + 1) - (steps - 1)) * 2.0 ** (last - bias - mantissa_bits)
    smallest = 2.0 ** (1 - bias - mantissa_bits)
    return Format(
        name=name,
        kind="float",
        bits=1 + exponent_bits + mantissa_bits,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=bias,
        max_finite=largest,
        min_normal=2.0 ** (1 - bias),
        min_subnormal=smallest,
        epsilon=2.0**-mantissa_bits,
        unit_roundoff=2.0 ** -(mantissa_bits + 1),
        consecutive=_consecutive(largest, smallest, mantissa_bits),
        inf=inf,
        nan=True,
        signed_zero=True,
        note="given by its widths",
    )


def _consecutive(largest: float, smallest: float, mantissa_bits: int) -> int:
    """The largest n such that all integers 0…n are numbers of the format."""
    return int(min(2.0 ** (mantissa_bits + 1), largest)) if smallest <= 1 else 0


def _check_widths(name: str, exponent_bits: int, mantissa_bits: int, bias: int | None, last: int) -> None:
    what = ""
    if not 2 <= exponent_bits <= 11:
        what = f"{exponent_bits} exponent bits; expected 2 to 11"
    elif not 0 <= mantissa_bits <= 52:
        what = f"{mantissa_bits} mantissa bits; expected 0 to 52"
    elif bias is None or last - bias > 1023 or 1 - bias - mantissa_bits < -1074:
        what = f"bias {bias} leads beyond the range of fp64; expected about {2 ** (exponent_bits - 1) - 1}"
    if what:
        raise InputError(f"format {name!r}: {what}; give widths such as exponent_bits=5, mantissa_bits=3, bias=15")


@lru_cache(maxsize=64)
def format_of(dtype: torch.dtype) -> str:
    """Name of a torch dtype's format; torch's own name (`int64`, `bool`, `complex64`) where there is no row."""
    name = str(dtype).removeprefix("torch.")
    return _BY_DTYPE.get(name, name)


@lru_cache(maxsize=64)
def dtype_of(name: str) -> torch.dtype:
    """The torch dtype that holds a format; its name may also be torch's own."""
    row = FORMATS.get(name)
    found = _DTYPES.get(row.dtype if row else name)
    if found is None:
        had = "torch has no dtype for it" if row else "no such format"
        usable = ", ".join(sorted(format_of(dtype) for dtype in set(_DTYPES.values()) if dtype.is_floating_point))
        raise InputError(f"format {name!r}: {had}; expected one of {usable}, or a torch dtype's name; use one of these")
    return found


@lru_cache(maxsize=128)
def is_float(name: str) -> bool:
    """Whether tensors of this format hold floating-point numbers (complex ones do not count)."""
    row = FORMATS.get(name)
    return row is not None and row.kind == "float"


@lru_cache(maxsize=128)
def bytes_of(name: str) -> float:
    """Bytes that one element takes in memory: tf32 is stored as fp32, fp4 as half a byte."""
    row = FORMATS.get(name)
    if row is not None:
        return 4.0 if name == "tf32" else row.bits / 8
    return float(dtype_of(name).itemsize)
