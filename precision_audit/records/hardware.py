"""The device that a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# How sure a figure is: a vendor's datasheet or two independent sources; one third party, or half of a sparse figure;
# sources disagree, or derived; taken on this machine; nobody publishes it.
Certainty = Literal["high", "medium", "low", "measured", "assumed"]

# What computes a format there: matrix units (tensor cores, MFMA, AMX); ordinary ALUs; conversion to another format;
# nothing.
Unit = Literal["matrix", "vector", "emulated", "none"]


@dataclass(frozen=True, slots=True)
class Rate:
    """What kernels of one kind reach in one format at one size of the problem, measured, launch included. Of a
    product (`kind` is a layout of `cost.products`): rows, the depth of its sums, FLOP/s. Of everything else (`kind` is
    a word of `cost.roofline`): bytes read and written, 1, byte/s."""

    kind: str
    format: str  # of a cast both: "fp32>bf16"
    size: float
    per_second: float
    depth: float = 1.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. Peaks in FLOP/s by format (dense, fp32 accumulation), bandwidth in byte/s, launch in seconds per
    kernel, memory in bytes (0: not known)."""

    name: str
    title: str
    capability: str  # "9.0", "gfx942", "amx"; "" where no recipe asks for one
    peaks: tuple[tuple[str, float], ...]
    bandwidth: float
    launch: float
    source: str
    kernels: str = "cuda"  # column of the op table that says which kernels exist: "cuda" or "cpu"
    vendor: str = ""
    architecture: str = ""
    memory: float = 0.0
    units: tuple[tuple[str, Unit], ...] = ()  # by format; a format that is not listed is not known
    certainty: tuple[tuple[str, Certainty], ...] = ()  # by format of a peak, or "bandwidth", "memory", "launch"
    encoding: Literal["", "ocp", "fnuz"] = ""  # of fp8; fnuz's largest e4m3 is 240
    notes: tuple[str, ...] = ()
    rates: tuple[Rate, ...] = ()  # measured; empty where the roofline is all there is
    processors: int = 0  # multiprocessors or compute units that tiles of a product are dealt to; 0: not known
