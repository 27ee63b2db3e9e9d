"""The words and the error that every record and stage shares."""

from __future__ import annotations

from typing import Literal

Basis = Literal["PROVED", "OBSERVED", "ASSUMED"]


Severity = Literal["error", "warning", "note"]


SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # worst first


Mode = Literal["training", "inference"]


Verdict = Literal["READY", "READY WITH CHANGES", "NOT READY", "NOT ENOUGH EVIDENCE"]


class InputError(Exception):
    """Something the user gave cannot be used: what, where, what was expected, what to do, in one line. The command
    line prints it and exits with 2."""
