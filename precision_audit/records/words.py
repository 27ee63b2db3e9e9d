"""The words and the error that every record and stage shares."""

from __future__ import annotations

from typing import Literal

Basis = Literal["PROVED", "OBSERVED", "ASSUMED"]


Severity = Literal["error", "warning", "note"]


SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # worst first


Mode = Literal["training", "inference"]


Verdict = Literal["READY", "READY WITH CHANGES", "NOT READY", "NOT ENOUGH EVIDENCE"]


def first_line(said: object, width: int = 200) -> str:
    """The first line of an error or a text that says anything, short enough to stand within a sentence; of an error
    that says nothing its class."""
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    return shortened(lines[0], width) if lines else type(said).__name__


def error_line(error: BaseException, width: int = 200) -> str:
    """`ValueError: what it says`; the class alone where it says nothing."""
    said = first_line(error, width)
    return said if said == type(error).__name__ else f"{type(error).__name__}: {said}"


def shortened(text: str, width: int) -> str:
    """Cut at a word where it is too long, which … shows."""
    if len(text) <= width:
        return text
    kept = text[: width - 1]
    return (kept.rpartition(" ")[0] or kept).rstrip(" ,;:(") + "…"


class InputError(Exception):
    """Something the user gave cannot be used: what, where, what was expected, what to do, in one line. The command
    line prints it and exits with 2."""


def kind_of(value: object) -> str:
    """What a value is, for a message: `an int`, `a str`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
