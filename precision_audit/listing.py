"""`precision-audit list ...`: what there is, as a table.

Takes the name of a registry; gives text. Every row comes from the registry itself, so that a new format, op, device or
policy is listed without a change here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from tabulate import tabulate


def render(what: str) -> str:
    """The table of `rules`, `policies`, `devices`, `formats` or `ops`."""
    return {"rules": _rules, "policies": _policies, "devices": _devices, "formats": _formats, "ops": _ops}[what]()


def _rules() -> str:
    from precision_audit import rules

    return _table([(code, rules.title(code)) for code in rules.listed()], ("rule", "what it finds"))


def _policies() -> str:
    from precision_audit import policy

    rows = []
    for name in policy.shipped():
        one = policy.load(name)
        rows.append((name, one.mode, one.high, one.low, one.device or "-", one.description))
    return _table(rows, ("policy", "mode", "high", "low", "device", "what for"))


def _devices() -> str:
    from precision_audit import hardware

    rows = []
    for name, one in sorted(hardware.DEVICES.items()):
        peaks = ", ".join(f"{form} {peak / 1e12:g}" for form, peak in one.peaks)
        rows.append((name, one.title, one.capability, f"{one.bandwidth / 1e9:g}", peaks))
    return _table(rows, ("device", "title", "capability", "GB/s", "dense peaks, TFLOP/s"))


def _formats() -> str:
    from precision_audit import formats

    return _records(formats.FORMATS.values())


def _ops() -> str:
    from precision_audit import ops

    return _records(ops.OPS.values())


def _records(records: Iterable[Any]) -> str:
    """A table with one column per field that holds plain values."""
    rows = list(records)
    names = [field.name for field in dataclasses.fields(rows[0])]
    return _table([[_cell(getattr(row, name)) for name in names] for row in rows], names)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, tuple | list | frozenset | set):
        return " ".join(str(entry) for entry in (sorted(value) if isinstance(value, set | frozenset) else value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _table(rows: Iterable[Iterable[Any]], headers: Iterable[str]) -> str:
    return tabulate([list(row) for row in rows], headers=list(headers), tablefmt="simple", disable_numparse=True)
