"""Divisibility of sizes with symbols: tables, and the truth by trying every residue."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_audit.divisible import divisible, product, symbols


@pytest.mark.parametrize(
    ("size", "verdict", "condition"),
    [
        (0, "always", ""),
        (16, "always", ""),
        (24, "never", ""),
        ("16*s0", "always", ""),
        ("s0", "depends", "s0 % 16 == 0"),
        ("B*T", "depends", "B*T % 16 == 0"),
        ("4*B", "depends", "B % 4 == 0"),
        ("196*B", "depends", "B % 4 == 0"),  # 196 = 4 · 49
        ("2*s0 + 1", "never", ""),
        ("16*s0 + 8", "never", ""),
        ("B + 1", "depends", "(B + 1) % 16 == 0"),
        ("8*(2*B + 4)", "always", ""),
        ("(s0//2)*32", "always", ""),
        ("(s0//2)", "depends", "(s0//2) % 16 == 0"),
        ("Max(1, s0)*16", "always", ""),
        ("N*E*S*I", "depends", "E*I*N*S % 16 == 0"),  # names that mean something to sympy are symbols here
        ("B**2*16", "always", ""),
        ("something odd", "depends", "(something odd) % 16 == 0"),
    ],
)
def test_verdicts(size: int | str, verdict: str, condition: str) -> None:
    found = divisible(size, 16)
    assert (found.verdict, found.condition.replace(" // ", "//")) == (verdict, condition)


@settings(max_examples=60, deadline=None)
@given(
    terms=st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4),
    by=st.sampled_from([8, 16]),
)
def test_never_wrong_on_polynomials(terms: list[tuple[int, int, int]], by: int) -> None:
    text = " + ".join(f"{c}*a**{i}*b**{j}" for c, i, j in terms)
    # A polynomial with integer coefficients takes, modulo `by`, only the values it takes on residues.
    residues = {sum(c * a**i * b**j for c, i, j in terms) % by for a, b in itertools.product(range(by), repeat=2)}
    verdict = divisible(text, by).verdict
    if verdict == "always":
        assert residues == {0}
    if verdict == "never":
        assert 0 not in residues
    if len(terms) == 1:  # a single term is decided exactly
        assert (verdict == "always") == (terms[0][0] % by == 0)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((), 1), ((4, 8), 32), ((4, "B"), "4*B"), (("B", "T"), "B*T"), ((2, "8*B"), "16*B"), (("B", 0), 0)],
)
def test_product(sizes: tuple[int | str, ...], expected: int | str) -> None:
    assert product(sizes) == expected


def test_symbols_are_names_not_functions() -> None:
    assert symbols("Max(1, s0)*u1") == ("s0", "u1")
    assert symbols(16) == ()
