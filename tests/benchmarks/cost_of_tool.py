"""What the tool itself costs, beside exporting and running the model.

    python -m tests.benchmarks.cost_of_tool

Converts each model of `tests.benchmarks.models` a few times under `bf16-inference`, without verification. Running the
model, which is what the evidence consists of (`cost_of_evidence` says in how many passes), and the time inside
`torch.export.export` are taken apart; what is left is this package: copying, records, decisions, the plan, the rewrite,
digests, the report. The target is half of one export.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from tabulate import tabulate

import precision_audit as pa
from precision_audit import pipeline
from tests.benchmarks.models import MODELS

TARGET = 0.5
HEADERS = ("model", "ops", "one export, s", "exports", "evidence, s", "the rest, s", "rest / export")


@contextmanager
def timed_evidence() -> Iterator[list[float]]:
    """Seconds of every gathering of evidence, which runs the model and exports nothing."""
    spent: list[float] = []
    gather = pipeline.analyse

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return gather(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - started)

    with mock.patch.object(pipeline, "analyse", timed):
        yield spent


@contextmanager
def timed_exports() -> Iterator[list[float]]:
    """Seconds of every torch.export, the unlifting of its program to a module (`.module()`) included."""
    spent: list[float] = []
    export, unlift = torch.export.export, torch.export.ExportedProgram.module

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return export(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - started)

    def timed_unlift(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return unlift(*args, **kwargs)
        finally:
            spent[-1] += time.perf_counter() - started

    with (
        mock.patch.object(torch.export, "export", timed),
        mock.patch.object(torch.export.ExportedProgram, "module", timed_unlift),
    ):
        yield spent


def measure(name: str, rounds: int) -> list[Any]:
    """Medians over `rounds`, after one that warms up imports and caches."""
    model, args = MODELS[name]()
    exports, evidence, rest = [], [], []
    for _ in range(rounds + 1):
        with timed_exports() as spent, timed_evidence() as running:
            started = time.perf_counter()
            result = pa.convert(model, args, policy="bf16-inference", verify=False)
            rest.append(time.perf_counter() - started - sum(spent) - sum(running))
            exports.append(spent[0])
            evidence.append(sum(running))
    export, ran, own = (statistics.median(each[1:]) for each in (exports, evidence, rest))
    computed = sum("/" in op.key for op in result.report.graph.ops)
    return [name, computed, export, len(spent), ran, own, own / export]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What the tool itself costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args(argv)
    rows = [measure(name, options.rounds) for name in options.models]
    print(tabulate(rows, HEADERS, floatfmt=".2f"))
    print(f"target: at most {TARGET} of one export")
    return int(any(row[-1] > TARGET for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
