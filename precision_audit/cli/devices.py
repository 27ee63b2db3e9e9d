"""`precision-audit list devices [NAME]`: what each device computes, and how much faster than in another format.

Takes the device table and the recipes; gives text. The overview has the ratios that people quote, of dense peaks; one
device has every figure with its certainty, the recipes that exist there, why the others do not, notes and source.
"""

from __future__ import annotations

from tabulate import tabulate

from precision_audit import hardware
from precision_audit.hardware.recipes import conditions, lacking
from precision_audit.recipes import RECIPES
from precision_audit.records import Hardware

_UNSURE = ("low", "assumed")
# format, the one it is compared with, heading
_RATIOS = (("tf32", "fp32"), ("bf16", "fp32"), ("fp16", "fp32"), ("fp8", "bf16"), ("nvfp4", "bf16"), ("fp64", "fp32"))
_LEGEND = """\
a / b: how many times as fast products in a are as in b, by dense peaks; fp64 in brackets: outside matrix units
-: not there · emul.: converted and computed in another format · ?: the figure is uncertain, or there is none
CPUs: two cores, good for ratios only; --device local measures this machine · fp4: NVFP4, on AMD MXFP4

figures one by one, recipes, notes and sources of a device: precision-audit list devices NAME"""


def overview() -> str:
    """All devices, one a row, in the table's order."""
    rows = [_row(one) for one in hardware.DEVICES.values()]
    ratios = [f"{'fp4' if a == 'nvfp4' else a}\n/ {b}" for a, b in _RATIOS]
    headers = ("device", "architecture", "capa-\nbility", "GiB", "GB/s", "fp32\nTFLOP/s", *ratios)
    align = ("left", "left", "left", *["right"] * (len(headers) - 3))
    return f"{tabulate(rows, headers, 'simple', colalign=align, disable_numparse=True)}\n\n{_LEGEND}"


def page(name: str) -> str:
    """Everything that is known of one device."""
    one = hardware.device(name)
    kind = ", ".join(filter(None, (one.vendor, one.architecture, one.capability)))
    memory = f"{one.memory / 2**30:.4g} GiB{_sure(one, 'memory')}" if one.memory else "that of the machine"
    parts = [
        f"{one.name}   {one.title}   ({kind})",
        f"memory {memory}, {one.bandwidth / 1e9:g} GB/s{_sure(one, 'bandwidth')}, "
        f"{one.launch * 1e6:.2g} µs a kernel launch{_sure(one, 'launch')}",
        _formats(one),
        _recipes(one),
        "\n".join(f"- {note}" for note in one.notes),
        f"source: {one.source}",
    ]
    return "\n\n".join(part for part in parts if part)


def _row(one: Hardware) -> list[str]:
    fp32 = dict(one.peaks).get("fp32", 0.0) / 1e12
    return [
        one.name,
        one.architecture,
        one.capability,
        f"{one.memory / 2**30:.4g}{_doubt(one, 'memory')}" if one.memory else "",
        f"{one.bandwidth / 1e9:.4g}{_doubt(one, 'bandwidth')}",
        f"{fp32:.3g}{_doubt(one, 'fp32')}",
        *(_ratio(one, format_, other) for format_, other in _RATIOS),
    ]


def _ratio(one: Hardware, format_: str, other: str) -> str:
    """`16`, `1 (0.5)`, `2?`, or why there is none."""
    if format_ == "nvfp4" and hardware.unit(one, "nvfp4") == "none":
        format_ = "mxfp4"  # what AMD has of fp4
    peaks, kind = dict(one.peaks), hardware.unit(one, format_)
    if format_ not in peaks or other not in peaks:
        return {"none": "-", "emulated": "emul."}.get(kind or "", "?")
    beside = f" ({_times(peaks['fp64_vector'], peaks[other])})" if format_ == "fp64" and "fp64_vector" in peaks else ""
    doubt = _doubt(one, format_) or _doubt(one, other)
    return f"{_times(peaks[format_], peaks[other])}{doubt}{beside}"


def _times(peak: float, other: float) -> str:
    return f"{peak / other:.3g}" if peak > other else f"{peak / other:.2g}"


def _doubt(one: Hardware, figure: str) -> str:
    return "?" if dict(one.certainty).get(figure) in _UNSURE else ""


def _sure(one: Hardware, figure: str) -> str:
    """` (assumed)`; nothing of a figure that is certain."""
    certainty = dict(one.certainty).get(figure, "high")
    return "" if certainty == "high" else f" ({certainty})"


def _formats(one: Hardware) -> str:
    """Formats with a unit or a peak, widest first; then figures of another way to compute."""
    peaks, sure, units = dict(one.peaks), dict(one.certainty), dict(one.units)
    shown = [name for name in hardware.FORMATS if units.get(name) != "none"]
    rows = []
    for name in [*shown, *(extra for extra in peaks if extra not in shown)]:
        peak = peaks.get(name, 0.0)
        of_fp32 = _times(peak, peaks["fp32"]) if peak and "fp32" in peaks else ""
        kind = units.get(name, "not known" if name in hardware.FORMATS else "")
        rows.append((name, kind, f"{peak / 1e12:g}" if peak else "", of_fp32, sure.get(name, "") if peak else ""))
    headers = ("format", "computed by", "TFLOP/s", "times fp32", "certainty")
    absent = ", ".join(name for name in hardware.FORMATS if units.get(name) == "none")
    return tabulate(rows, headers, "simple", disable_numparse=True) + (f"\nnot there: {absent}" if absent else "")


def _recipes(one: Hardware) -> str:
    rows = []
    for row in RECIPES.values():
        reason = lacking(row, one)
        rows.append((row.backend, row.name, "no" if reason else "yes", reason or "; ".join(conditions(row, one))))
    return tabulate(rows, ("backend", "recipe", "there", "why, or what it asks for"), "simple", disable_numparse=True)
