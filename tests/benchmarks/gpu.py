"""What a GPU really makes of it: bf16, fp8 recipes, autocast and our plans, predicted against measured.

    python -m tests.benchmarks.gpu --out gpu.json                    on a CUDA machine, under ten minutes
    python -m tests.benchmarks.gpu --device cpu --small --out x.json  every code path, in a minute, on any machine

Transformer blocks of width 1024 to 8192 (8192 tokens) and ResNet-50, inference and training steps, eager and compiled.
The variants of one workload are timed interleaved, medians of rounds. Seconds are of one step: forward, in training
with backward, without an optimizer. Workloads come in the order of what is worth knowing first; when the budget is
spent the rest is skipped and says so. A variant or a workload that raises says so and stops nothing else.

The JSON: `environment`, and `workloads`, each with `status` (ok, skipped, failed), `reason` and `rows`: variant, eager
or compiled, measured seconds and bytes at the peak, predicted ones, their
ratio, and the relative L2 of the output against fp32's.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import json
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from precision_audit.hardware import DEVICES
from precision_audit.records import Mode
from tests.benchmarks import gpu_models
from tests.benchmarks.gpu_measuring import Timed, first_line, peak_bytes, seconds
from tests.benchmarks.gpu_variants import Skipped, Variant, Workload

WIDTHS, SMALL_WIDTHS = (4096, 8192, 2048, 1024), (64,)
TOKENS, SMALL_TOKENS = 8192, 32
MODES: tuple[Mode, ...] = ("training", "inference")
RESERVE = 0.12  # of the budget: a workload that starts with less than this left would run over it


def main(argv: list[str]) -> int:
    options = _options(argv)
    started = time.monotonic()
    device = options.device or ("cuda" if torch.cuda.is_available() else "")
    if not device or (device == "cuda" and not torch.cuda.is_available()):
        print("no CUDA device here; to try the script itself: --device cpu --small", file=sys.stderr)
        return 2
    row = device_row(torch.cuda.get_device_name()) if device == "cuda" else "cpu-amx"
    found: dict[str, Any] = {"environment": environment(device, row), "workloads": []}
    for name, width, mode in workloads(options):
        left = options.budget - (time.monotonic() - started)
        if left < RESERVE * options.budget:
            entry: dict[str, Any] = {"name": name, "status": "skipped", "reason": f"{left:.0f} s left of the budget"}
        else:
            entry = {"name": name, "mode": mode, **_workload(width, mode, device, row, options, started)}
        found["workloads"].append(entry)
        print(_shown(entry), flush=True)
        _write(options.out, found)  # after each, so that a killed run leaves what it has
    found["seconds"] = round(time.monotonic() - started, 1)
    _write(options.out, found)
    return int(not any(entry["status"] == "ok" for entry in found["workloads"]))


def workloads(options: argparse.Namespace) -> Iterator[tuple[str, int, Mode]]:
    """Name, width (0: ResNet) and mode, what is worth knowing first coming first."""
    widths = options.widths or (SMALL_WIDTHS if options.small else WIDTHS)
    for index, width in enumerate(widths):
        for mode in MODES:
            yield f"block {width}, {mode}", width, mode
        if index == 0:
            for mode in MODES:
                yield f"ResNet-50, {mode}", 0, mode


def device_row(name: str) -> str:
    """The row of the device table for what the driver calls the GPU: the longest key that occurs in it, "" for none."""
    plain = _plain(name)
    return max((key for key in DEVICES if _plain(key) in plain), key=len, default="")


def environment(device: str, row: str) -> dict[str, Any]:
    packages = {
        name: _version(name) for name in ("torch", "torchao", "transformer-engine", "triton", "precision-audit")
    }
    cuda = torch.cuda.get_device_capability() if device == "cuda" else ()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "capability": ".".join(map(str, cuda)),
        "row": row or "none of the device table's: nothing is predicted",
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
    }


def _workload(
    width: int, mode: Mode, device: str, row: str, options: argparse.Namespace, started: float
) -> dict[str, Any]:
    began = time.monotonic()
    try:
        tokens = SMALL_TOKENS if options.small else TOKENS
        built = gpu_models.block(width, tokens, device) if width else gpu_models.resnet(options.small, device)
        rows = _rows(Workload(built, mode, device, row or "h100"), device, bool(row), options, started)
    except Exception as error:
        return {"status": "failed", "reason": first_line(error), "seconds": round(time.monotonic() - began, 1)}
    finally:
        torch._dynamo.reset()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    status = (
        {"status": "ok"} if any("seconds" in row for row in rows) else {"status": "failed", "reason": "all variants"}
    )
    return {**status, "seconds": round(time.monotonic() - began, 1), "rows": rows}


def _rows(
    work: Workload, device: str, known: bool, options: argparse.Namespace, started: float
) -> list[dict[str, Any]]:
    """One row per variant, eager and compiled."""
    built: dict[str, Variant] = {}
    rows: list[dict[str, Any]] = []
    for name, build in work.variants():
        try:
            built[name] = build()
        except Skipped as reason:
            rows.append({"variant": name, "skipped": str(reason)})
        except Exception as error:
            rows.append({"variant": name, "failed": first_line(error)})
    errors = _errors(built)
    for how in ("eager", "compiled") if options.compile else ("eager",):
        if how == "compiled" and time.monotonic() - started > (1 - RESERVE) * options.budget:
            rows.append({"variant": "all", "run": how, "skipped": "the budget is spent"})
            continue
        runs = {
            name: (
                each.module if how == "eager" else torch.compile(each.module, dynamic=False, backend=options.backend)
            )
            for name, each in built.items()
        }
        calls = {name: (lambda run=runs[name], step=each.step: step(run)) for name, each in built.items()}
        timed, failed = seconds(calls, device, 2 if options.small else options.rounds)
        for name, each in built.items():
            if name in failed:
                rows.append({"variant": name, "run": how, "failed": failed[name]})
            else:
                peak = peak_bytes(calls[name], each.held, device)
                row = _row(name, how, timed[name], peak, each.predicted if known else {})
                rows.append(row | ({"error": errors[name]} if name in errors and how == "eager" else {}))
    return rows


def _errors(built: Mapping[str, Variant]) -> dict[str, float]:
    """Relative L2 of each variant's output against fp32's, eager; those that raise are reported when they are timed."""
    if "fp32" not in built:
        return {}
    wanted, found = built["fp32"].output().double(), {}
    for name, each in built.items():
        with contextlib.suppress(Exception):
            found[name] = float((each.output().double() - wanted).norm() / wanted.norm())
    return found


def _row(name: str, how: str, timed: Timed, peak: int | None, predicted: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "variant": name,
        "run": how,
        "seconds": timed.median,
        "seconds_low": timed.low,
        "seconds_high": timed.high,
        "rounds": timed.rounds,
        "bytes": peak,
        "predicted": dict(predicted),
    }
    if predicted.get("seconds"):
        row["seconds_ratio"] = predicted["seconds"] / timed.median
    if predicted.get("bytes") and peak:
        row["bytes_ratio"] = predicted["bytes"] / peak
    return row


def _shown(entry: dict[str, Any]) -> str:
    head = f"\n{entry['name']}: {entry['status']}" + (f", {entry['reason']}" if "reason" in entry else "")
    lines = [
        [
            row["variant"],
            row.get("run", ""),
            f"{row['seconds'] * 1e3:.2f}" if "seconds" in row else row.get("skipped") or row.get("failed"),
            f"{row['predicted']['seconds'] * 1e3:.2f}" if row.get("predicted", {}).get("seconds") else "",
            f"{row['error']:.1e}" if "error" in row else "",
            f"{row['bytes'] / 2**20:.0f}" if row.get("bytes") else "",
            f"{row['predicted']['bytes'] / 2**20:.0f}" if row.get("predicted", {}).get("bytes") else "",
        ]
        for row in entry.get("rows", ())
    ]
    heads = ["variant", "run", "ms", "ms predicted", "error", "MiB", "MiB predicted"]
    return head + ("\n" + tabulate(lines, heads) if lines else "")


def _write(out: Path | None, found: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="bf16, fp8, autocast and our plans: predicted against measured.")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda")
    parser.add_argument("--small", action="store_true", help="tiny models and two rounds: tries the script itself")
    parser.add_argument("--widths", type=int, nargs="+", help="of the blocks")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=540.0, help="seconds in all")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--out", type=Path, help="the JSON file")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
