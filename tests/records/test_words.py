"""How an error is quoted within a sentence."""

from __future__ import annotations

import pytest

from precision_audit.records import error_line, first_line, shortened


@pytest.mark.parametrize(
    ("text", "width", "kept"),
    [
        ("give inputs with --input", 30, "give inputs with --input"),
        ("give inputs with --input", 24, "give inputs with --input"),
        ("give inputs with --input", 22, "give inputs with…"),  # no `--inpu`
        ("expected (a, b), (c, d)", 18, "expected (a, b)…"),
        ("x" * 30, 10, "x" * 9 + "…"),
    ],
)
def test_a_text_is_cut_at_a_word(text: str, width: int, kept: str) -> None:
    assert shortened(text, width) == kept and len(kept) <= width


@pytest.mark.parametrize(
    ("error", "line", "told"),
    [
        (ValueError("no data\nmore"), "no data", "ValueError: no data"),
        (ValueError("\n  later  \n"), "later", "ValueError: later"),
        (AssertionError(), "AssertionError", "AssertionError"),
        (RuntimeError("many words " * 40), shortened(("many words " * 40).strip(), 200), None),
    ],
)
def test_an_error_is_quoted_by_its_first_line(error: Exception, line: str, told: str | None) -> None:
    assert first_line(error) == line
    assert told is None or error_line(error) == told
