"""The devices that costs are computed for, read from `hardware.yaml`.

Takes a name as people write it (`h100`, `A100-80GB`, `RTX 4090`, `NVIDIA H100 80GB HBM3`); gives the `Hardware` of it:
dense peaks in FLOP/s, bandwidth in byte/s, memory in bytes, the seconds one kernel launch takes, what computes each
format, and how certain every figure is. Adding a device is adding an entry to the file. Imports neither torch nor any
other part of the package but its records, and never asks the machine it runs on.

A format without a peak has no unit on that device, or one that nobody gives a figure for; `cost` then takes the fp32
peak, since such a format is converted and computed in fp32.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from precision_audit.records import Certainty, Hardware, InputError, Unit

# What a device may compute with; block formats by the name of their products.
FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "fp6", "mxfp4", "nvfp4", "int8")

_FILE = Path(__file__).parent / "hardware.yaml"
_TERA, _GIGA, _GIBI = 1e12, 1e9, 2.0**30
_LAUNCH = 2e-6  # s: the GPU time of a one-element kernel on an H100, in torchao's roofline tables
_VENDORS = re.compile(r"^(nvidia|amd|intel|apple|geforce|tesla|instinct)+")
_NAMED = 5  # devices named where the nearest one cannot be told


def device(name: str) -> Hardware:
    """The row called `name`, in any usual spelling."""
    row = DEVICES.get(name.lower()) or DEVICES.get(_SPELLINGS.get(_squeezed(name), ""))
    if row is not None:
        return row
    raise InputError(f"device {name!r} is unknown: {_nearest(name)}")


def has_tf32(row: Hardware) -> bool:
    """Whether PyTorch runs fp32 products on TF32 units there when its settings allow it: NVIDIA's from capability 8.0
    on. AMD's MI300X has such units, but its libraries leave them off unless a variable of their own is set."""
    major = row.capability.partition(".")[0]
    return row.kernels == "cuda" and major.isdigit() and int(major) >= 8


def unit(row: Hardware, format_: str) -> Unit | None:
    """What computes `format_` there; None where nobody knows. `fp8_e4m3fn` goes by fp8."""
    known = dict(row.units)
    return known.get(format_) or known.get(format_.partition("_")[0])


def _nearest(name: str) -> str:
    """What to write instead: the rows that begin so, the nearest spelling, else where to look."""
    typed = _squeezed(name)
    begun = [known for known in DEVICES if typed and _squeezed(known).startswith(typed)]
    if len(typed) > 2 and 0 < len(begun) <= _NAMED:
        return f"did you mean {' or '.join(begun)}?"
    near = difflib.get_close_matches(typed, _SPELLINGS, n=1)
    if near:
        return f"did you mean {_SPELLINGS[near[0]]}?"
    return f"choose one of {', '.join(sorted(DEVICES))}"


def _squeezed(name: str) -> str:
    """Letters and digits alone, without the vendor: one spelling for `RTX 4090`, `rtx-4090` and `NVIDIA RTX4090`."""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    return _VENDORS.sub("", bare) or bare


def _row(name: str, entry: dict[str, Any]) -> Hardware:
    units: dict[str, Unit] = dict.fromkeys(FORMATS, "none")
    for kind, formats in entry["units"].items():
        for format_ in formats:
            if kind == "unknown":
                del units[format_]
            else:
                units[format_] = kind
    return Hardware(
        name=name,
        title=entry["title"],
        capability=entry["capability"],
        peaks=tuple((format_, peak * _TERA) for format_, peak in entry["peaks"].items()),
        bandwidth=entry["bandwidth"] * _GIGA,
        launch=_LAUNCH,
        source=entry["source"],
        kernels=entry.get("kernels", "cuda"),
        vendor=entry["vendor"],
        architecture=entry["architecture"],
        memory=entry["memory"] * _GIBI,
        units=tuple(units.items()),
        certainty=_certainty(entry),
        encoding=entry.get("encoding", ""),
        notes=tuple(entry.get("notes", ())),
    )


def _certainty(entry: dict[str, Any]) -> tuple[tuple[str, Certainty], ...]:
    """Of every figure; one that the file says nothing of is certain, save the launch."""
    said: dict[str, Certainty] = {"launch": "assumed", **entry.get("certainty", {})}
    figures = (*entry["peaks"], "bandwidth", *(("memory",) if entry["memory"] else ()), "launch")
    return tuple((figure, said.get(figure, "high")) for figure in figures)


def _read() -> tuple[dict[str, Hardware], dict[str, str]]:
    """The rows by name, and the name by every other spelling."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was compiled
    entries: dict[str, dict[str, Any]] = yaml.load(_FILE.read_text(encoding="utf-8"), Loader=loader)
    rows = {name: _row(name, entry) for name, entry in entries.items()}
    here = rows["cpu-amx"]
    rows["local"] = replace(
        here, name="local", title="this machine, measured when a plan is made for it; until then as cpu-amx",
        vendor="", architecture="",
    )  # fmt: skip
    spellings = {_squeezed(name): name for name in rows}
    for name, entry in entries.items():
        for also in (entry["title"], *entry.get("also", ())):
            spellings.setdefault(_squeezed(also), name)
    return rows, spellings


DEVICES: dict[str, Hardware]
_SPELLINGS: dict[str, str]
DEVICES, _SPELLINGS = _read()
