"""How bad it is that a number vanishes: one answer for the rules PA107 to PA110.

Takes what is known of the place; gives a severity.
"""

from __future__ import annotations

from precision_audit.records import Severity


def severity_of(shielded: bool, lost: int, reachable: bool | None) -> Severity:
    """error where the low model loses elements, warning where the guarded number can be zero or was never seen."""
    if shielded:
        return "note"
    if lost:
        return "error"
    return "note" if reachable is False else "warning"
