"""The devices that costs are computed for: one row each.

`DEVICES[name]` holds dense peaks in FLOP/s (fp32 accumulation, boost clock, no 2:4 sparsity), memory bandwidth in
byte/s and the seconds one kernel launch takes. A format without a peak has no matrix unit on that device; `cost`
then takes the fp32 peak, since such a format is converted and computed in fp32. Never asks the machine it runs on.

Sources of the GPU rows are the vendors' datasheets; where a datasheet prints the figure with 2:4 sparsity, half of it.
Launch: 2 µs is the GPU time of a one-element kernel on an H100 (torchao's roofline tables say so); nobody publishes it
for the other devices, so it is assumed for them all.
"""

from __future__ import annotations

import difflib

from precision_audit.records import Hardware, InputError

_TERA, _GIGA = 1e12, 1e9
_LAUNCH = 2e-6


def device(name: str) -> Hardware:
    """The row called `name`."""
    row = DEVICES.get(name.lower())
    if row is not None:
        return row
    near = difflib.get_close_matches(name.lower(), DEVICES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(sorted(DEVICES))}"
    raise InputError(f"device {name!r} is unknown: {hint}")


def has_tf32(row: Hardware) -> bool:
    """Whether PyTorch runs fp32 products on TF32 units there when its settings allow it: NVIDIA's from capability 8.0
    on. AMD's MI300X has such units, but its libraries leave them off unless a variable of their own is set."""
    major = row.capability.partition(".")[0]
    return row.kernels == "cuda" and major.isdigit() and int(major) >= 8


def _gpu(name: str, title: str, capability: str, bandwidth: float, source: str, **tera: float) -> tuple[str, Hardware]:
    """A GPU's row: `bandwidth` in GB/s, peaks in TFLOP/s by format."""
    peaks = tuple((format_, value * _TERA) for format_, value in tera.items())
    return name, Hardware(name, title, capability, peaks, bandwidth * _GIGA, _LAUNCH, source, "cuda")


# Products: two shared cores of a server with AMX gave 22 (fp32), 148 (bf16, AMX), 34 (fp16, AVX-512) and 14 (fp64)
# GFLOP/s for a matmul of 1024 x 1024 x 1024 under torch 2.13; only the ratios matter to a plan. Bandwidth and launch
# come from another server without AMX, two cores: relu and add over 64 MiB of fp32 moved 7 to 10 GB/s, the cast of four
# elements took 2.3 µs.
_CPU = (("fp32", 22e9), ("bf16", 148e9), ("fp16", 34e9), ("fp64", 14e9))
_CPU_SOURCE = "measured with torch 2.13 on two cores: products with AMX; bandwidth and launch on a CPU without"

DEVICES: dict[str, Hardware] = dict(
    (
        _gpu("v100", "NVIDIA V100 SXM2", "7.0", 900, "NVIDIA V100 datasheet", fp32=15.7, fp16=125, fp64=7.8),
        _gpu("t4", "NVIDIA T4", "7.5", 320, "NVIDIA T4 datasheet", fp32=8.1, fp16=65, fp64=0.25),
        _gpu(
            "a100", "NVIDIA A100 SXM 80 GB", "8.0", 2039, "NVIDIA A100 datasheet",
            fp32=19.5, tf32=156, bf16=312, fp16=312, fp64=19.5,
        ),
        _gpu(
            "l40s", "NVIDIA L40S", "8.9", 864, "NVIDIA L40S datasheet",
            fp32=91.6, tf32=183, bf16=362, fp16=362, fp8=733,
        ),
        _gpu(
            "h100", "NVIDIA H100 SXM", "9.0", 3350, "NVIDIA H100 datasheet, dense = half of the sparse figures",
            fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, fp64=66.9,
        ),
        _gpu(
            "h200", "NVIDIA H200 SXM", "9.0", 4800, "NVIDIA H200 datasheet: an H100 SXM with more memory",
            fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, fp64=66.9,
        ),
        _gpu(
            "b200", "NVIDIA B200 (HGX)", "10.0", 8000, "NVIDIA Blackwell datasheet, dense; tf32, fp32 and fp64 derived",
            fp32=75, tf32=1125, bf16=2250, fp16=2250, fp8=4500, fp64=37,
        ),
        _gpu(
            "mi300x", "AMD Instinct MI300X", "gfx942", 5300, "AMD MI300X datasheet; its fp8 is e4m3fnuz, largest 240",
            fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9, fp64=163.4,
        ),
        ("cpu-amx", Hardware("cpu-amx", "x86 CPU with AMX", "amx", _CPU, 10e9, 2e-6, _CPU_SOURCE, "cpu")),
        ("local", Hardware("local", "this machine, taken as cpu-amx", "amx", _CPU, 10e9, 2e-6, _CPU_SOURCE, "cpu")),
    )
)  # fmt: skip
