"""Fewer casts, faster: converted models against torch.autocast, on this machine's CPU.

    python -m tests.benchmarks.versus_autocast
    python -m tests.benchmarks.versus_autocast --models bert --profile

Five ways to run each model of `tests.benchmarks.models`:

    fp32          as written
    autocast      torch.autocast("cpu", torch.bfloat16)
    all bf16      everything `.bfloat16()`, float inputs too
    converted     policy bf16-inference
    stream high   policy bf16-inference-stream-high: residual stream and norms in fp32

Rounds are interleaved: each runs every way once, in an order that turns by one from round to round, so that a busy
moment of the machine or a warm cache favours none. A time ratio is taken within a round; the table has its median and,
behind the slash, half the distance between its quartiles. Casts are those that one forward really executes; "in ops"
are those that an op makes within itself (on the CPU `rms_norm` widens a bf16 input and narrows its result). Errors are
relative L2 of the first output against fp64, the median over seeds of weights and inputs; times are of seed 0.

Exits with 1 when a target of `TARGETS` is missed.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import precision_audit as pa
from tests.benchmarks.models import MODELS, SMALL
from tests.models import tensors

Args = tuple[Any, ...]
Run = Callable[[], Any]


def autocast(module: nn.Module, args: Args) -> Run:
    run = torch.autocast("cpu", torch.bfloat16)(module.forward)
    return lambda: run(*args)


def all_bf16(module: nn.Module, args: Args) -> Run:
    lowered, inputs = copy.deepcopy(module).bfloat16(), in_format(args, torch.bfloat16)
    return lambda: lowered(*inputs)


def converted(policy: str) -> Callable[[nn.Module, Args], Run]:
    def convert(module: nn.Module, args: Args) -> Run:
        result = pa.convert(module, args, policy=policy, verify=False).module.eval()
        return lambda: result(*args)

    return convert


WAYS: dict[str, Callable[[nn.Module, Args], Run]] = {
    "fp32": lambda module, args: lambda: module(*args),
    "autocast": autocast,
    "all bf16": all_bf16,
    "converted": converted("bf16-inference"),
    "stream high": converted("bf16-inference-stream-high"),
}


def in_format(args: Args, dtype: torch.dtype) -> Args:
    return tuple(value.to(dtype) if value.is_floating_point() else value for value in args)


class CountCasts(TorchDispatchMode):
    """Counts the conversions between float formats that are executed while it is active, and their bytes: those that
    someone placed (the model, autocast, a plan), and those that an op makes within itself."""

    def __init__(self) -> None:
        super().__init__()
        self.placed = self.inner = self.bytes = 0
        self.calls = Calls()

    def __enter__(self) -> CountCasts:
        self.calls.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.calls.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            source = args[0]
            if source.is_floating_point() and result.is_floating_point() and source.dtype != result.dtype:
                inner = bool(self.calls.inside) and self.calls.inside[-1]
                self.inner += inner
                self.placed += not inner
                self.bytes += source.numel() * (source.element_size() + result.element_size())
        return result


# What a cast is called, as a method, a function or an aten op.
CASTING = ("to", "_to_copy", "float", "double", "half", "bfloat16", "type")


class Calls(TorchFunctionMode):
    """For each torch function being called, outermost first: would a cast in it be its own? Not where the function is
    itself a cast, nor under autocast, which casts on the way into a function."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").partition(".")[0]
        self.inside.append(name not in CASTING and not torch.is_autocast_enabled("cpu"))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside.pop()


@dataclass
class Measured:
    """One way to run one model."""

    casts: int = 0  # placed by the model, by autocast or by a plan
    inner_casts: int = 0  # made by ops within themselves
    cast_bytes: int = 0  # of both, read and written
    seconds: list[float] = field(default_factory=list)  # one a round
    errors: list[float] = field(default_factory=list)  # one a seed

    @property
    def error(self) -> float:
        return statistics.median(self.errors)


def measure(name: str, sizes: dict[str, int], ways: Sequence[str], rounds: int, seeds: int) -> dict[str, Measured]:
    """Everything about one model. Conversions of seed 0 are timed, those of other seeds only compared with fp64."""
    measured = {way: Measured() for way in ways}
    for seed in reversed(range(seeds)):
        module, args = MODELS[name](seed, **sizes)
        exact = first(copy.deepcopy(module).double()(*in_format(args, torch.float64)))
        runs = {way: WAYS[way](module, args) for way in ways}
        for way, run in runs.items():
            output = first(run()).double()
            measured[way].errors.append(((output - exact).norm() / exact.norm()).item())
    for way, run in runs.items():  # of seed 0, the last
        with CountCasts() as counter:
            run()
        measured[way].casts, measured[way].inner_casts = counter.placed, counter.inner
        measured[way].cast_bytes = counter.bytes
    for turn in range(rounds):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            start = time.perf_counter()
            runs[way]()
            measured[way].seconds.append(time.perf_counter() - start)
    return measured


def first(output: Any) -> Tensor:
    return next(tensors(output))


def ratio(measured: dict[str, Measured], way: str, other: str) -> tuple[float, float]:
    """Time of `way` over time of `other`, round by round: median, half the distance between the quartiles."""
    ratios = [mine / theirs for mine, theirs in zip(measured[way].seconds, measured[other].seconds, strict=True)]
    if len(ratios) < 2:
        return ratios[0], 0.0
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return middle, (high - low) / 2


def all_casts(one: Measured) -> int:
    return one.casts + one.inner_casts


@dataclass(frozen=True)
class Target:
    """A claim on one figure of each model; `best` is the limit it must not exceed."""

    text: str
    value: Callable[[dict[str, Measured]], float]
    limit: float


TARGETS = (
    Target("converted: casts / autocast's", lambda m: m["converted"].casts / m["autocast"].casts, 0.25),
    Target(
        "converted: casts, those in ops too / autocast's",
        lambda m: all_casts(m["converted"]) / all_casts(m["autocast"]),
        0.25,
    ),
    Target("converted: time / autocast's", lambda m: ratio(m, "converted", "autocast")[0], 1.03),
    Target("converted: time / all bf16's", lambda m: ratio(m, "converted", "all bf16")[0], 1.10),
    Target("stream high: error / autocast's", lambda m: m["stream high"].error / m["autocast"].error, 1.05),
    Target("stream high: time / autocast's", lambda m: ratio(m, "stream high", "autocast")[0], 1.03),
)
MEAN_SPEEDUP = 1.2  # geometric mean over the models of autocast's time over the converted model's, at least


def judge(results: dict[str, dict[str, Measured]]) -> list[list[str]]:
    """One row a target: its limit, the figure of each model, whether all hold."""
    rows = []
    for target in TARGETS:
        values = [target.value(measured) for measured in results.values()]
        met = all(value <= target.limit for value in values)
        rows.append([target.text, f"<= {target.limit}", *(f"{value:.2f}" for value in values), verdict(met)])
    logs = [-math.log(ratio(measured, "converted", "autocast")[0]) for measured in results.values()]
    speedup = math.exp(statistics.fmean(logs))
    figures = [f"{math.exp(value):.2f}" for value in logs]
    text = f"autocast's time / converted's, mean {speedup:.2f}"
    rows.append([text, f">= {MEAN_SPEEDUP}", *figures, verdict(speedup >= MEAN_SPEEDUP)])
    return rows


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def show(name: str, measured: dict[str, Measured]) -> None:
    rows = []
    for way, one in measured.items():
        row = [way, f"{statistics.median(one.seconds) * 1e3:.1f}"]
        for other in ("autocast", "all bf16"):
            row.append("{:.3f} / {:.3f}".format(*ratio(measured, way, other)) if other in measured else "-")
        rows.append([*row, f"{one.casts}", f"{one.inner_casts}", f"{one.cast_bytes / 1e6:.2f}", f"{one.error:.2e}"])
    headers = ["runs as", "ms", "time / autocast's", "time / all bf16's", "casts", "in ops", "cast MB", "relative L2"]
    print(f"\n{name}")
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left",) + ("right",) * 7), flush=True)


def profile(name: str, sizes: dict[str, int], ways: Sequence[str], repeats: int = 3) -> None:
    """Milliseconds of one forward by aten op (time of its own), one column a way, dearest ops first."""
    module, args = MODELS[name](0, **sizes)
    table: dict[str, dict[str, float]] = {}
    for way in ways:
        run = WAYS[way](module, args)
        run()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
            for _ in range(repeats):
                run()
        for event in recorded.key_averages():
            table.setdefault(event.key, {})[way] = event.self_cpu_time_total / 1e3 / repeats  # µs to ms
    dearest = sorted(table, key=lambda key: (-max(table[key].values()), key))[:20]
    rows = [[key, *(f"{table[key].get(way, 0.0):.2f}" for way in ways)] for key in dearest]
    rows.append(["all", *(f"{sum(times.get(way, 0.0) for times in table.values()):.2f}" for way in ways)])
    print(f"\n{name}: ms by op")
    print(tabulate(rows, headers=["op", *ways], disable_numparse=True, colalign=("left",) + ("right",) * len(ways)))


@torch.no_grad()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Converted models against torch.autocast on this CPU.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="without all five, no targets")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=5, help="sets of weights and inputs to compare with fp64")
    parser.add_argument("--profile", action="store_true", help="also time by op")
    parser.add_argument("--small", action="store_true", help="toy sizes, to try this script itself")
    options = parser.parse_args(argv)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.rounds} rounds, {options.seeds} seeds"
    )
    results: dict[str, dict[str, Measured]] = {}
    for name in options.models:
        sizes = SMALL[name] if options.small else {}
        results[name] = measure(name, sizes, options.ways, options.rounds, options.seeds)
        show(name, results[name])
        if options.profile:
            profile(name, sizes, options.ways)
    if set(options.ways) != set(WAYS):
        return 0
    rows = judge(results)
    print()
    print(tabulate(rows, headers=["target", "limit", *results, ""], disable_numparse=True))
    return 1 if any(row[-1] == verdict(False) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
