"""`precision-audit list recipes`: how a linear can be quantised, where that exists, and which policy does it.

Takes the recipes, the devices and the shipped policies; gives text, one recipe a row in the table's order. Everything
is read from the rows themselves: a new recipe, device or policy is listed without a change here.
"""

from __future__ import annotations

from tabulate import tabulate

from precision_audit import hardware, policy
from precision_audit.hardware.recipes import chosen, lacking
from precision_audit.recipes import RECIPES, Recipe

HEADER = ("backend", "recipe", "quantises", "K, N, M multiples of\n(in training)", "devices", "policies")
_WIDTHS = [None, None, 26, None, 40, 30]
_LEGEND = """\
y[M, N] = x[M, K] · W[N, K]; 1: any size; devices as in `list devices`
a rule asks for one by backend: and recipe:, with class: fp8-eligible; why a device has it not: list devices NAME"""
_PRODUCTS = ("forward", "gradient of x", "gradient of W")


def table() -> str:
    used = _policies()
    rows = [
        (row.backend, row.name, _quantised(row), _sizes(row), _devices(row), ", ".join(used.get(key, [])) or "-")
        for key, row in RECIPES.items()
    ]
    made = tabulate(rows, HEADER, "simple", disable_numparse=True, maxcolwidths=_WIDTHS)
    return f"{made}\n\n{_LEGEND}"


def _quantised(row: Recipe) -> str:
    """`weights and inputs, fp8_rowwise`, and which of the products of training."""
    what = "weights and inputs" if row.activations else "weights"
    left = [name for name, done in zip(_PRODUCTS, row.products, strict=True) if not done]
    but = f", not the {' and '.join(left)}" if "training" in row.modes and left else ""
    return f"{what}: {row.scheme}{but}"


def _sizes(row: Recipe) -> str:
    forward, trained = (", ".join(map(str, sizes)) for sizes in (row.multiple, row.multiple_training))
    return f"{forward} ({trained})" if "training" in row.modes and trained != forward else forward


def _devices(row: Recipe) -> str:
    """All, or the names of those that have it."""
    there = [one.name for one in hardware.DEVICES.values() if not lacking(row, one)]
    return "any" if len(there) == len(hardware.DEVICES) else ", ".join(there) or "-"


def _policies() -> dict[tuple[str, str], list[str]]:
    """Shipped policies by the recipe that a rule of theirs asks for, on the policy's own device."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in policy.shipped():
        made = policy.load(name)
        for rule in made.rules:
            if rule.classification == "fp8-eligible":
                row = chosen(rule.backend, rule.recipe, hardware.device(made.device or "local"))
                names = found.setdefault((row.backend, row.name), [])
                names.extend([name] if name not in names else [])
    return found
