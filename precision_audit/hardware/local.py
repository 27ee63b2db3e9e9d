"""What `--device local` is: this machine, measured once.

Takes the table's row `local`; gives a `Hardware` with the rates of this machine's kernels. Measured where a plan is
really made for it, never by listing or naming devices; kept in the user's cache folder under the processor, torch's
version and the number of threads, so that later runs predict the same to the byte. A CUDA device at hand is meant
before the processor; its peaks are those of the table's row for its name.

`PRECISION_AUDIT_LOCAL=NAME` makes `local` stand for a row of the table instead, where reports must not depend on the
machine that writes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_audit.hardware import DEVICES, device
from precision_audit.records import Hardware, InputError, Rate, Unit

if TYPE_CHECKING:
    from precision_audit.hardware.measuring import Speed

NAME = "local"
VARIABLE = "PRECISION_AUDIT_LOCAL"
_VERSION = 2  # of what is measured and how; a new one measures again
_GPU_SCALE = 8  # sizes on a GPU, as multiples of those on a CPU
_BEST = ("linear", "matmul")  # layouts whose best rate stands for the peak


def resolved(row: Hardware) -> Hardware:
    """The row; of `local`, what it stands for."""
    if row.name != NAME:
        return row
    named = os.environ.get(VARIABLE, "")
    if not named:
        return _measured()
    try:
        standing = device(named)
    except InputError as error:
        raise InputError(f"{VARIABLE}: {error}") from None
    if standing.name == NAME:
        raise InputError(f"{VARIABLE}: local cannot stand for itself; name a row of the table, or unset it to measure")
    return replace(standing, name=NAME, title=f"taken as {standing.name}")


@cache
def _measured() -> Hardware:
    import torch

    chip = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if chip == "cuda" else processor()
    speed = _speed(chip, name)
    made = _gpu(name, speed) if chip == "cuda" else _cpu(speed)
    return replace(made, name=NAME, title=f"{name}, measured", rates=speed.rates, launch=speed.launch,
                   bandwidth=speed.bandwidth, source="measured on this machine")  # fmt: skip


def _speed(chip: str, name: str) -> Speed:
    """From the cache, or measured and put there."""
    from precision_audit.hardware.measuring import measure

    path = cache_folder() / f"local-{_key(chip, name)}.json"
    kept = _read(path)
    if kept is not None:
        return kept
    _say(f"measuring {name} for --device local, once: a few seconds ({VARIABLE}=NAME plans for a row of the table)")
    speed = measure(chip, _GPU_SCALE if chip == "cuda" else 1)
    _keep(path, speed)
    return speed


def processor() -> str:
    """The processor as its maker names it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine() or "this processor"


def cache_folder() -> Path:
    """The user's, as the system has it."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given:
        return Path(given) / "precision-audit"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "precision-audit"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "precision-audit"


def _key(chip: str, name: str) -> str:
    import torch

    said = (_VERSION, chip, name, torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability())
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def _read(path: Path) -> Speed | None:
    """None where nothing was kept, or something that cannot be read."""
    from precision_audit.hardware.measuring import Speed

    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        rates = tuple(Rate(**each) for each in tree["rates"])
        figures = [*(each.per_second for each in rates), tree["launch"], tree["bandwidth"]]
        whole = all(math.isfinite(each) and each > 0 for each in figures) and "fp32" in dict(_peaks(rates))
        return Speed(rates, tree["launch"], tree["bandwidth"]) if whole else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _keep(path: Path, speed: Speed) -> None:
    tree = {"launch": speed.launch, "bandwidth": speed.bandwidth, "rates": [asdict(rate) for rate in speed.rates]}
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        _say(f"cannot keep what was measured in {path.parent} ({error.strerror}): the next run measures again")


def _cpu(speed: Speed) -> Hardware:
    """A row from what was measured alone."""
    units = _units()
    matrix = "amx" if "matrix" in units.values() else ""
    return replace(DEVICES[NAME], capability=matrix, peaks=_peaks(speed.rates), memory=float(_memory()),
                   units=tuple(units.items()), certainty=(), notes=())  # fmt: skip


def _gpu(name: str, speed: Speed) -> Hardware:
    """The table's row for that name with this card's own size; a card without a row has the peaks that were measured,
    which are no less than it reaches."""
    import torch

    found = torch.cuda.get_device_properties(0)
    try:
        row = device(name)
    except InputError:
        capability = f"{found.major}.{found.minor}"
        row = replace(DEVICES[NAME], capability=capability, kernels="cuda", peaks=_peaks(speed.rates), units=())
    return replace(row, memory=float(found.total_memory), processors=int(found.multi_processor_count))


def _peaks(rates: Iterable[Rate]) -> tuple[tuple[str, float], ...]:
    """The best product of each format; fp64 at half of fp32's, as vector units have it."""
    best: dict[str, float] = {}
    for each in rates:
        if each.kind in _BEST:
            best[each.format] = max(best.get(each.format, 0.0), each.per_second)
    return (*best.items(), ("fp64", best["fp32"] / 2))


def _units() -> dict[str, Unit]:
    """What torch's kernels find here. Vendors document AMX for bf16 and int8, AVX-512 extensions for bf16 and fp16."""
    import torch

    def has(name: str) -> bool:
        return bool(getattr(torch.cpu, name, lambda: False)())

    amx = has("_is_amx_tile_supported")
    bf16: Unit = "matrix" if amx else "vector" if has("_is_avx512_bf16_supported") else "emulated"
    fp16: Unit = "matrix" if has("_is_amx_fp16_supported") else "vector" if _flag("avx512_fp16") else "emulated"
    int8: Unit = "matrix" if amx else "vector"
    return {"fp64": "vector", "fp32": "vector", "bf16": bf16, "fp16": fp16, "int8": int8}


def _flag(name: str) -> bool:
    with contextlib.suppress(OSError):
        return f" {name}" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return False


def _memory() -> float:
    """Bytes of the machine, to two digits; 0 where the system does not say."""
    from precision_audit.hardware.measuring import rounded

    with contextlib.suppress(ValueError, OSError, AttributeError):
        return rounded(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return 0.0


def _say(text: Any) -> None:
    print(text, file=sys.stderr)
