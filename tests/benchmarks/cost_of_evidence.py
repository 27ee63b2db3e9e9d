"""What the streamed evidence costs: time against a plain forward, and memory against the number of batches.

    python tests/benchmarks/cost_of_evidence.py [--rounds 5] [--batches 500] [--models resnet50 bert]

Time: one batch under `forward` against one call of the module, in turn, so that what else the machine does meets both;
the median of the rounds' ratios counts, the first round is left out. What is done once (values that depend on no input)
is shown apart. Memory: peak of this process for 1 and for many batches, each in a process of its own that receives the
batches one by one, with the models' small sizes. Exits with 1 above a limit.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script

import torch
from tabulate import tabulate

from precision_audit.analyse.forward import forward
from precision_audit.capture import capture
from tests.benchmarks.models import MODELS, SMALL

SLOWER, LARGER = 3.0, 1.2


class Repeated(Sequence[Any]):
    """Many batches that never exist at the same time."""

    def __init__(self, batch: tuple[Any, ...], number: int) -> None:
        self._batch, self._number = batch, number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._number:
            raise IndexError(index)
        return tuple(_other(value, index) for value in self._batch), {}

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self._number))


def ratio(name: str, rounds: int) -> list[Any]:
    """Model, values, seconds of a plain forward, of a counted one, once, and the ratio."""
    module, args = MODELS[name]()
    captured = capture(module, args)
    plain, once, pairs = [], [], []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        with torch.no_grad():
            module(*args)
        plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        forward(captured, ())
        once.append(time.perf_counter() - started)
        started = time.perf_counter()
        ranges, _ = forward(captured, [(args, {})])
        pairs.append(time.perf_counter() - started - once[-1])
    ratios = [counted / one for counted, one in zip(pairs[1:], plain[1:], strict=True)]
    medians = [statistics.median(each[1:]) for each in (plain, pairs, once)]
    return [name, len(ranges), *medians, statistics.median(ratios)]


def peak(name: str, batches: int) -> int:
    """Peak memory in KiB of a process that sees so many batches."""
    command = [sys.executable, __file__, "--peak", name, "--batches", str(batches)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measured_peak(name: str, batches: int) -> int:
    """In this process."""
    module, args = MODELS[name](**SMALL[name])
    forward(capture(module, args), Repeated(args, batches))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What the streamed evidence costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--models", nargs="+", default=["resnet50", "bert"], choices=list(MODELS))
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.peak:
        print(measured_peak(options.peak, options.batches))
        return 0
    # memory first: a process begins with the peak of the one that starts it
    memory = [(name, peak(name, 1), peak(name, options.batches)) for name in options.models]
    times = [ratio(name, options.rounds) for name in options.models]
    heads = ["model", "values", "plain forward, s", "with evidence, s", "once, s", "ratio"]
    print(tabulate(times, heads, floatfmt=".2f"))
    rows = [[name, one / 1024, many / 1024, many / one] for name, one, many in memory]
    print(tabulate(rows, ["model", "1 batch, MiB", f"{options.batches} batches, MiB", "ratio"], floatfmt=".2f"))
    print(f"limits: {SLOWER} x a plain forward, {LARGER} x the memory of one batch")
    return int(any(row[-1] > SLOWER for row in times) or any(row[-1] > LARGER for row in rows))


def _other(value: Any, index: int) -> Any:
    """Other numbers of the same shape."""
    return value.roll(index) if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
