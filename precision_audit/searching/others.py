"""What a search needs of rooms that are built beside it: a quantised product, what a device lacks, a swap's seconds.

Each asks the room itself where it stands, and else answers from what was there before: torchao's emulation for fp8, a
comparison of capabilities, the roofline of an fp8 linear.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from precision_audit.recipes import RECIPES, Recipe
from precision_audit.records import Hardware, Mode, Op, Swap, Tensor

if TYPE_CHECKING:
    import torch

_TORCHAO = {"fp8_tensorwise": "tensorwise", "fp8_rowwise": "rowwise"}


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scheme: str) -> torch.Tensor:
    """x · weight transposed + bias as a kernel with quantised operands gives it."""
    made: torch.Tensor
    if (room := _room("quantise", "product")) is not None:
        made = room(x, weight, bias, scheme)
        return made
    from precision_audit.analyse.beside import fp8_product

    swap = Swap("", "", "torchao", _TORCHAO[scheme], weight.shape[1], weight.shape[0], x.numel() // weight.shape[1])
    return fp8_product(swap, x, weight, bias)


def lacking(row: Recipe, hardware: Hardware) -> str:
    """Why the device does not have the recipe, or nothing."""
    if (room := _room("hardware.recipes", "lacking")) is not None:
        return str(room(row, hardware))
    if hardware.capability.startswith("gfx"):
        return "" if hardware.capability in row.rocm else f"{row.name} has no kernel for {hardware.capability}"
    has = _version(hardware.capability)
    if row.minimum and (not has or has < _version(row.minimum)):
        return f"{row.name} needs compute capability {row.minimum}; {hardware.name} is {hardware.capability or 'none'}"
    if row.below and has >= _version(row.below):
        return f"{row.name} is refused from compute capability {row.below} on; {hardware.name} is {hardware.capability}"
    return ""


def seconds(op: Op, inputs: Sequence[Tensor], row: Recipe, low: str, hardware: Hardware, mode: Mode) -> float:
    """Of a linear that was swapped by the recipe, quantisation included."""
    if (room := _room("cost.swapped", "seconds")) is not None:
        return float(room(op, inputs, row, low, hardware, mode))
    from precision_audit.cost import roofline

    return roofline.fp8_seconds(op, inputs, low, hardware, mode)


def row_of(swap: Swap) -> Recipe:
    """The recipe of a swap."""
    return RECIPES[swap.backend, swap.recipe]


def _room(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"precision_audit.{module}"), name, None)
    except ModuleNotFoundError:
        return None


def _version(capability: str) -> tuple[int, ...]:
    parts = capability.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
