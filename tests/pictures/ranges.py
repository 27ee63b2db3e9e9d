"""Ranges and training evidence made by hand, for pictures."""

from __future__ import annotations

from precision_audit.records import LossScale, Range, Training


def made(histogram: dict[int, int], zeros: int = 0, nan: int = 0, infinite: int = 0, value: str = "fc.weight") -> Range:
    """A value with `histogram[e]` elements of magnitude 1.5 * 2**e, and so many others."""
    count = sum(histogram.values()) + zeros + nan + infinite
    present = sorted(power for power, number in histogram.items() if number)
    largest = 1.5 * 2.0 ** present[-1] if present else 0.0
    smallest = 1.5 * 2.0 ** present[0] if present else 0.0
    pairs = tuple(sorted(histogram.items()))
    return Range(value, "OBSERVED", count, largest, smallest, -largest, largest, zeros, nan, infinite, pairs)


def training(*gradients: Range, activations: tuple[Range, ...] = (), scale: float | None = None) -> Training:
    """Evidence with these weight gradients and activation gradients."""
    recommended = None
    if scale is not None:
        recommended = LossScale("fp16", scale, scale, scale * 4, "fc.weight", "fc.weight", 4.0, 0.5, 0.0)
    return Training(3, (1.0, 0.9, 0.8), (), gradients, (), activations, scale=recommended)
