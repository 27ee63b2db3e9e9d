"""`precision-audit list ...`: what there is, as a table.

Takes the name of a registry; gives text. Every row comes from the registry itself, so that a new format, op, device or
policy is listed without a change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tabulate import tabulate

from precision_audit.records import InputError


def render(what: str, name: str = "") -> str:
    """The table of `rules`, `policies`, `devices`, `recipes`, `formats` or `ops`; of devices also the page of one."""
    if name:
        return _one(what, name)
    return {
        "rules": _rules, "policies": _policies, "devices": _devices, "recipes": _recipes, "formats": _formats,
        "ops": _ops,
    }[what]()  # fmt: skip


def _one(what: str, name: str) -> str:
    from precision_audit.cli import devices

    if what != "devices":
        more = "; a rule's manual: precision-audit rule CODE" if what == "rules" else ""
        raise InputError(f"list {what} {name}: only devices are shown one by one; expected list {what}{more}")
    return devices.page(name)


def _rules() -> str:
    from precision_audit.rules import manual

    return (
        _table(manual.rows(), ("rule", "what it finds", "family", "severity")) + "\n\nmore: precision-audit rule CODE"
    )


def _policies() -> str:
    from precision_audit import policy

    rows = []
    for name in policy.shipped():
        one = policy.load(name)
        rows.append((name, one.mode, one.high, one.low, one.device or "-", one.description))
    return _table(rows, ("policy", "mode", "high", "low", "device", "what for"))


def _devices() -> str:
    from precision_audit.cli import devices

    return devices.overview()


def _recipes() -> str:
    from precision_audit.cli import recipes

    return recipes.table()


def _formats() -> str:
    from precision_audit import formats

    columns = ("name", "bits", "exponent_bits", "mantissa_bits", "max_finite", "min_normal", "min_subnormal")
    return _records(formats.FORMATS.values(), {name: name.replace("_", " ") for name in columns} | {
        "unit_roundoff": "unit roundoff", "consecutive": "exact integers to", "overflow": "cast beyond the largest",
    })  # fmt: skip


def _ops() -> str:
    from precision_audit import ops

    columns = {
        "name": "op", "kind": "kind", "arithmetic": "arithmetic", "default": "default", "cuda": "autocast cuda",
        "cpu": "autocast cpu", "acc_cuda": "sums in, cuda", "acc_cpu": "sums in, cpu", "flops": "flops",
        "depth": "reduction depth", "cuda_bf16": "cuda bf16", "cuda_fp16": "cuda fp16", "cpu_bf16": "cpu bf16",
        "cpu_fp16": "cpu fp16",
    }  # fmt: skip
    kernels = "kernels, forward then backward: y there is one, n there is none, ? not known, - no gradient or no float"
    return _records(ops.OPS.values(), columns) + f"\n\n{kernels}"


def _records(records: Iterable[Any], columns: Mapping[str, str]) -> str:
    """A table of some fields, by field name and heading."""
    return _table([[_cell(getattr(row, name)) for name in columns] for row in records], columns.values())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _table(rows: Iterable[Iterable[Any]], headers: Iterable[str]) -> str:
    return tabulate([list(row) for row in rows], headers=list(headers), tablefmt="simple", disable_numparse=True)
