"""The device table: every entry whole, figures those of the vendors, spellings, and errors that help."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import precision_audit
from precision_audit.hardware import DEVICES, FORMATS, device, has_tf32, unit
from precision_audit.records import InputError

PACKAGE = Path(precision_audit.__file__).parent
FILE = PACKAGE / "hardware" / "hardware.yaml"
GPUS = (
    *("p100", "v100", "t4", "a100", "a100-40gb", "a10", "l4", "l40", "l40s", "rtx4090", "h100", "h100-pcie", "h200"),
    *("b200", "gb200", "b300", "rtx5090", "mi300x", "mi355x"),
)
MPS = ("mps-m1-max", "mps-m2-max", "mps-m3-max", "mps-m4-max")
CPUS = ("cpu-amx", "cpu-amx-fp16", "cpu-avx512-bf16", "cpu-avx2", "local")
CERTAINTIES = {"high", "medium", "low", "measured", "assumed"}

# Dense TFLOP/s (fp32 accumulation) and GB/s, from the vendors' datasheets or independent copies of them; fp64 is that
# of matrix units where there are any.
FIGURES: list[tuple[str, str, float, dict[str, float]]] = [
    ("v100", "7.0", 900, dict(fp16=125, fp32=15.7, fp64=7.8)),
    ("t4", "7.5", 320, dict(fp16=65, int8=130, fp32=8.1, fp64=0.25)),
    ("a100", "8.0", 2039, dict(fp16=312, bf16=312, tf32=156, int8=624, fp32=19.5, fp64=19.5, fp64_vector=9.7)),
    ("a100-40gb", "8.0", 1555, dict(fp16=312, bf16=312, tf32=156, int8=624, fp32=19.5, fp64=19.5, fp64_vector=9.7)),
    ("a10", "8.6", 600, dict(fp16=125, bf16=125, tf32=62.5, int8=250, fp32=31.2, fp64=0.98)),
    ("l4", "8.9", 300, dict(fp16=121, bf16=121, tf32=60, fp8=242, int8=242, fp32=30.3, fp64=0.49)),
    ("l40", "8.9", 864, dict(fp16=181, bf16=181, tf32=90.5, fp8=362, int8=362, fp32=90.5)),
    ("l40s", "8.9", 864, dict(fp16=362, bf16=362, tf32=183, fp8=733, int8=733, fp32=91.6)),
    (
        "rtx4090",
        "8.9",
        1008,
        dict(bf16=165.2, fp16=165.2, fp16_acc16=330.3, tf32=82.6, fp8=330.3, fp8_acc16=660.6, fp32=82.6, fp64=1.29),
    ),
    (
        "h100",
        "9.0",
        3350,
        dict(fp16=989.4, bf16=989.4, tf32=494.7, fp8=1978.9, int8=1978.9, fp32=66.9, fp64=66.9, fp64_vector=33.5),
    ),
    (
        "h100-pcie",
        "9.0",
        2000,
        dict(fp16=756, bf16=756, tf32=378, fp8=1513, int8=1513, fp32=51, fp64=51, fp64_vector=26),
    ),
    (
        "h200",
        "9.0",
        4800,
        dict(fp16=989.4, bf16=989.4, tf32=494.7, fp8=1978.9, int8=1978.9, fp32=66.9, fp64=66.9, fp64_vector=33.5),
    ),
    (
        "b200",
        "10.0",
        8000,
        dict(fp16=2250, bf16=2250, tf32=1125, fp8=4500, mxfp8=4500, fp6=4500, nvfp4=9000, int8=4500, fp32=75, fp64=37),
    ),
    (
        "gb200",
        "10.0",
        8000,
        dict(fp16=2500, bf16=2500, tf32=1250, fp8=5000, mxfp8=5000, fp6=5000, nvfp4=10000, fp32=80, fp64=40),
    ),
    ("b300", "10.3", 8000, dict(bf16=2250, fp16=2250, fp8=4500, nvfp4=14000, fp64=1.25)),
    ("rtx5090", "12.0", 1792, dict(bf16=209.5, fp16=209.5, fp8=419, nvfp4=1676, tf32=104.8, fp32=104.8, fp64=1.64)),
    (
        "mi300x",
        "gfx942",
        5300,
        dict(fp16=1307.4, bf16=1307.4, tf32=653.7, fp8=2614.9, int8=2614.9, fp32=163.4, fp64=163.4, fp64_vector=81.7),
    ),
    ("mi355x", "gfx950", 8000, dict(fp16=2500, bf16=2500, fp8=5000, fp6=10000, mxfp4=10000, fp32=157.3, fp64=78.6)),
    # Pascal has no tensor cores: fp16 is twice fp32 with sums in fp16, which PyTorch does not use
    ("p100", "6.0", 732, dict(fp32=10.6, fp64=5.3, fp16=10.6, fp16_acc16=21.2)),
    ("cpu-amx", "amx", 10, dict(fp32=0.022, bf16=0.148, fp16=0.034, fp64=0.014)),
]

# What is less than certain, of these figures.
UNCERTAIN = {
    "p100": {"fp16": "medium"},
    "t4": {"fp64": "medium"},
    "a10": {"fp64": "low"},
    "l4": {"fp64": "low"},
    "rtx4090": {"fp64": "low"},
    "h100-pcie": {"tf32": "medium"},
    "b200": dict.fromkeys(("tf32", "int8", "fp32", "fp64"), "medium"),
    "gb200": dict.fromkeys(("fp32", "fp64"), "medium"),
    "b300": {**dict.fromkeys(("bf16", "fp16", "fp8", "fp64"), "low"), "nvfp4": "medium"},
    "rtx5090": dict.fromkeys(("tf32", "fp64"), "low"),
    "mi355x": dict.fromkeys(("fp16", "bf16", "fp8", "fp6", "mxfp4", "fp32", "fp64"), "medium"),
    "cpu-amx": dict.fromkeys(("fp32", "bf16", "fp16", "fp64"), "measured"),
}

# m matrix units, v ordinary ALUs, e emulated, - none, ? not known; formats in this order
ORDER = ("fp64", "tf32", "bf16", "fp16", "fp8", "mxfp8", "fp6", "mxfp4", "nvfp4", "int8")
UNITS = {
    "p100": "v-ev------",
    "v100": "v-em-----v",
    "t4": "v-em-----m",
    "a100": "mmmm-----m",
    "a10": "vmmm-----m",
    "l4": "vmmmm----m",
    "l40s": "vmmmm----m",
    "rtx4090": "vmmmm----m",
    "h100": "mmmmm----m",
    "h200": "mmmmm----m",
    "b200": "mmmmmmmmmm",
    "gb200": "mmmmmmmmmm",
    "b300": "mmmmmmmmm?",
    "rtx5090": "vmmmmmmmmm",
    "mi300x": "mmmmm----m",
    "mi355x": "memmmmmm-m",
    "mps-m1-max": "--ev-----v",
    "cpu-amx": "v-mve----m",
    "cpu-amx-fp16": "v-mme----m",
    "cpu-avx512-bf16": "v-vee----v",
    "cpu-avx2": "v-eee----v",
}
_LETTER = {"matrix": "m", "vector": "v", "emulated": "e", "none": "-", None: "?"}


def test_every_promised_device_is_there() -> None:
    assert set(DEVICES) == {*GPUS, *MPS, *CPUS}


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_each_row_is_whole(name: str) -> None:
    row = DEVICES[name]
    peaks, sure = dict(row.peaks), dict(row.certainty)
    assert row.name == name and row.title and row.source
    assert bool(row.vendor and row.architecture) == (name != "local")  # whatever this machine is
    assert row.kernels == ("cuda" if name in GPUS else "mps" if name in MPS else "cpu")
    assert peaks["fp32"] > 1e9 < row.bandwidth and 1e-7 < row.launch < 1e-4
    assert (row.memory > 1e10) == (name in GPUS) and bool(row.capability) == (name not in MPS)
    assert set(sure) == {*peaks, "bandwidth", "launch", *(["memory"] if row.memory else [])}
    assert set(sure.values()) <= CERTAINTIES
    assert set(dict(row.units)) <= set(FORMATS) and all(unit(row, each) in _LETTER for each in FORMATS)
    for format_, peak in peaks.items():  # what has a peak is computed by something that has that format
        assert peak > 0 and unit(row, format_) in ("matrix", "vector")
    assert row.encoding == ("" if unit(row, "fp8") in ("none", "emulated") else "fnuz" if name == "mi300x" else "ocp")


@pytest.mark.parametrize("entry", yaml.safe_load(FILE.read_text()).items(), ids=lambda entry: entry[0])
def test_each_entry_says_nothing_else(entry: tuple[str, dict[str, Any]]) -> None:
    _, said = entry
    assert set(said) <= {"title", "also", "vendor", "architecture", "capability", "kernels", "memory", "bandwidth",
                         "peaks", "units", "certainty", "encoding", "source", "notes"}  # fmt: skip
    assert set(said["units"]) <= {"matrix", "vector", "emulated", "unknown"}
    named = [format_ for formats in said["units"].values() for format_ in formats]
    assert len(named) == len(set(named)) and set(named) <= set(FORMATS)
    assert set(said.get("certainty", {})) <= {*said["peaks"], "bandwidth", "memory", "launch"}
    assert all("\n" not in note for note in said.get("notes", ()))


@pytest.mark.parametrize(("name", "capability", "bandwidth", "peaks"), FIGURES, ids=[row[0] for row in FIGURES])
def test_figures(name: str, capability: str, bandwidth: float, peaks: dict[str, float]) -> None:
    row = device(name)
    assert (row.capability, row.bandwidth) == (capability, bandwidth * 1e9)
    found = dict(row.peaks)
    assert {format_: found[format_] for format_ in peaks} == pytest.approx({f: p * 1e12 for f, p in peaks.items()})
    sure = dict(row.certainty)
    assert {format_: sure[format_] for format_ in peaks if sure[format_] != "high"} == UNCERTAIN.get(name, {})


@pytest.mark.parametrize(("name", "letters"), UNITS.items())
def test_units(name: str, letters: str) -> None:
    assert "".join(_LETTER[unit(device(name), format_)] for format_ in ORDER) == letters
    assert unit(device(name), "fp8_e4m3fn") == unit(device(name), "fp8")


@pytest.mark.parametrize(
    ("name", "of", "to", "times"),
    [
        ("a100", "fp32", "tf32", 8),
        ("a100", "fp32", "fp16", 16),
        ("a100", "fp32", "fp64_vector", 0.5),
        ("v100", "fp32", "fp16", 8),
        ("h100", "bf16", "fp8", 2),
        ("b200", "bf16", "nvfp4", 4),
        ("mi300x", "fp32", "bf16", 8),
        ("rtx4090", "fp16", "fp16_acc16", 2),
        ("p100", "fp32", "fp16_acc16", 2),
    ],
)
def test_ratios_that_people_quote(name: str, of: str, to: str, times: float) -> None:
    peaks = dict(device(name).peaks)
    assert peaks[to] / peaks[of] == pytest.approx(times, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gibibytes"), [("p100", 16), ("a100", 80), ("a100-40gb", 40), ("h200", 140), ("mi355x", 288), ("t4", 15)]
)
def test_memory_in_bytes(name: str, gibibytes: int) -> None:
    assert device(name).memory == gibibytes * 2**30


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("H100", "h100"),
        ("A100-80GB", "a100"),
        ("A100 40GB", "a100-40gb"),
        ("RTX4090", "rtx4090"),
        ("rtx 5090", "rtx5090"),
        ("H100 PCIe", "h100-pcie"),
        ("MI300X", "mi300x"),
        ("Sapphire Rapids", "cpu-amx"),
        # as torch.cuda.get_device_name spells them
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla P100-SXM2-16GB", "p100"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Apple M4 Max", "mps-m4-max"),
    ],
)
def test_usual_spellings(typed: str, name: str) -> None:
    assert device(typed) is DEVICES[name]


def test_no_spelling_means_two_devices() -> None:
    seen: dict[str, str] = {}
    for name, entry in yaml.safe_load(FILE.read_text()).items():
        for also in (name, *entry.get("also", ())):
            bare = "".join(filter(str.isalnum, also.lower()))
            assert seen.setdefault(bare, name) == name
            assert device(also).name == name


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("h10", "h100 or h100-pcie"),
        ("h10o", "h100"),
        ("h1000", "h100"),
        ("mi300", "mi300x"),
        ("RTX 4080", "rtx4090"),
        ("cpu", "cpu-amx or cpu-amx-fp16 or cpu-avx512-bf16 or cpu-avx2"),
        ("mps", "mps-m1-max or mps-m2-max or mps-m3-max or mps-m4-max"),
    ],
)
def test_an_unknown_device_names_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        device(wrong)
    assert str(caught.value) == f"device {wrong!r} is unknown: did you mean {right}?"


@given(st.text(max_size=30))
def test_any_text_is_a_device_or_one_line(text: str) -> None:
    try:
        assert device(text).name in DEVICES
    except InputError as error:
        assert len(str(error).splitlines()) == 1
        assert "did you mean" in str(error) or "choose one of" in str(error)


def test_tf32_is_nvidia_from_ampere_on() -> None:
    assert {name for name in DEVICES if has_tf32(DEVICES[name])} == set(GPUS) - {
        "p100",
        "v100",
        "t4",
        "mi300x",
        "mi355x",
    }


def test_importing_the_table_imports_no_torch() -> None:
    code = "import sys, precision_audit.hardware, precision_audit.hardware.recipes; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_table_is_part_of_the_package() -> None:
    """Hatch ships every file below the packages it is told of, unless something leaves them out."""
    root = PACKAGE.parent / "pyproject.toml"
    if not root.is_file():
        pytest.skip("not a checkout")
    wheel = tomllib.loads(root.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert FILE.is_file() and wheel["packages"] == ["precision_audit"] and not {"exclude", "only-include"} & set(wheel)
