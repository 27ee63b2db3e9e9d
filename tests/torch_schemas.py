"""What the installed torch says of its own ops: names, overloads, schemas."""

from __future__ import annotations

from typing import Any

import torch

# Ops that not every supported torch has: `cholesky` and `qr` went with 2.14, the other one came with it.
SOME_VERSIONS = frozenset({"cholesky", "qr", "linalg_matrix_sqrth"})


def overloads(name: str) -> list[str]:
    """Overloads without names of dimensions."""
    return [overload for overload in ALL_OVERLOADS.get(name, []) if not {"dimname", "names"} & set(overload.split("_"))]


def schema(name: str, overload: str) -> Any:
    return torch._C._get_schema(f"aten::{name}", "" if overload == "default" else overload)


def _all_overloads() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        if full.startswith("aten::"):
            name, _, overload = full.removeprefix("aten::").partition(".")
            found.setdefault(name, []).append(overload or "default")
    return found


ALL_OVERLOADS = _all_overloads()
