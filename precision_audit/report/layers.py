"""The table of linears: may each be swapped, and is it worth it?

Takes a `Report` whose cost holds layers; gives a header, rows and one line of counts. Layers that differ in nothing but
their place are one row. What is predicted stands beside what is decided and is called predicted.
"""

from __future__ import annotations

from precision_audit.records import Layer, Report
from precision_audit.report import phrases

HEADER = ("linear", "K -> N", "M", "recipe", "may", "worth", "predicted", "torchao's filter", "swapped")
_NAMES_WIDTH = 34
_SIZE = {"K": "k", "N": "n", "M": "m"}


def rows(report: Report) -> list[tuple[str, ...]]:
    """One row for all layers with the same sizes and verdicts, in graph order."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for layer in _layers(report):
        groups.setdefault(_row(layer), []).append(layer.module or layer.op)
    return [(phrases.names(names, _NAMES_WIDTH), *row) for row, names in groups.items()]


def counts(report: Report) -> str:
    """`12 linears under rowwise: 9 may be swapped, 4 of them worth it, 9 swapped; padding would help 2`, "" without."""
    found = _layers(report)
    if not found:
        return ""
    recipes = ", ".join(dict.fromkeys(layer.recipe for layer in found))
    may = [layer for layer in found if layer.eligible]
    worth = sum(not layer.not_worth for layer in may)
    swapped = sum(layer.swapped for layer in found)
    padded = [layer.padding for layer in found if layer.padding is not None]
    text = f"{phrases.count(len(found), 'linear')} under {recipes}: {len(may)} may be swapped, {worth} of them worth it"
    text += f" (predicted), {swapped} swapped"
    if padded:
        gain = sum(padding.worth for padding in padded)
        text += f"; padding would make {len(padded)} more eligible, {gain} of them worth it"
    return text


def remarks(report: Report) -> list[str]:
    """Why not, one sentence for all layers that share it, and what padding costs."""
    said: dict[str, list[str]] = {}
    for layer in _layers(report):
        for text in _said(layer):
            said.setdefault(text, []).append(layer.module or layer.op)
    return [f"{phrases.names(names, _NAMES_WIDTH)}: {text}" for text, names in said.items()]


def _layers(report: Report) -> tuple[Layer, ...]:
    return report.cost.layers if report.cost is not None else ()


def _row(layer: Layer) -> tuple[str, ...]:
    may = "no" if not layer.eligible else "if" if layer.constraints else "yes"
    worth = "-" if not layer.eligible else "no" if layer.not_worth else "yes"
    speed = f"{layer.speed_up:.2f}x" if layer.eligible and layer.seconds else "-"
    swapped = "yes" if layer.swapped else "kept" if layer.kept else "no"
    return (f"{layer.k} -> {layer.n}", str(layer.m), layer.recipe, may, worth, speed, layer.auto_filter or "-", swapped)


def _said(layer: Layer) -> list[str]:
    told = [layer.reason] if not layer.eligible else [f"if {condition}" for condition in layer.constraints]
    told += [layer.not_worth] if layer.not_worth else []
    told += [f"kept: {layer.kept}"] if layer.kept else []
    if layer.padding is not None:
        told.append(_padded(layer))
    return told


def _padded(layer: Layer) -> str:
    padding = layer.padding
    assert padding is not None
    sizes = {name: (getattr(layer, field), getattr(padding, field)) for name, field in _SIZE.items()}
    steps = ", ".join(f"{name} {old} to {new}" for name, (old, new) in sizes.items() if old != new)
    worth = "worth it" if padding.worth else "not worth it"
    return (
        f"padding {steps} makes it eligible: weight {phrases.size(padding.bytes)}, predicted "
        f"{padding.seconds * 1e6:.3g} µs against {layer.seconds_low * 1e6:.3g} µs unpadded in the low format, {worth}"
    )
