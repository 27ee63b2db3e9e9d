"""Predicted time against measured time on this machine's CPU.

    python -m tests.benchmarks.predicted_time
    python -m tests.benchmarks.predicted_time --models bert mlp-mixer --rounds 7

The prediction rests on what `precision_audit.hardware.measuring` measured of single kernels, never on a model. Three
ways to run each model of `tests.benchmarks.models`, and three further ones (`FURTHER`), which showed what sizes of
kernels have to be measured: large contiguous images, and more than 128 columns:

    fp32          as written
    all bf16      everything `.bfloat16()`, float inputs too
    converted     policy bf16-inference, planned for `local`

Rounds are interleaved, each way once a round, in an order that turns; a ratio is taken within a round, the median
counts. Seconds are those of the wall or, where fewer, of the process's processors, so that what else runs on the
machine counts little. Exits with 1 when a predicted ratio to fp32 is off by more than 25 % (`LIMIT`).
"""

from __future__ import annotations

import argparse
import copy
import inspect
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

from precision_audit import hardware
from precision_audit import policy as policies
from precision_audit.capture import private_copy
from precision_audit.capturing import captures
from precision_audit.cost import cost
from precision_audit.hardware.local import resolved
from precision_audit.planning import planned
from precision_audit.records import NO_FACTS, Cost
from precision_audit.rewrite import rewrite
from tests.benchmarks.models import MODELS, SMALL, Built, settle
from tests.benchmarks.versus_autocast import in_format

LIMIT = 0.25
Run = Callable[[], Any]


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.across(self.norms[0](stream).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = stream + self.along(self.norms[1](stream))
        return mixed


def mixer(seed: int = 0, *, batch: int = 2, tokens: int = 196, width: int = 384, depth: int = 6) -> Built:
    torch.manual_seed(seed)
    module = settle(nn.Sequential(*(MixerBlock(tokens, width) for _ in range(depth))), depth, seed)
    return module, (torch.randn(batch, tokens, width),)


class UNet(nn.Module):
    """Contiguous images, as most are written; one level down and up again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.down = self._stage(3, width), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.low, self.up = self._stage(2 * width, 2 * width), nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last, self.head = self._stage(2 * width, width), nn.Conv2d(width, 4, 1)

    @staticmethod
    def _stage(entering: int, width: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(entering, width, 3, 1, 1), nn.GroupNorm(8, width), nn.SiLU(),
                             nn.Conv2d(width, width, 3, 1, 1), nn.GroupNorm(8, width), nn.SiLU())  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        high = self.first(images)
        up = self.up(self.low(self.down(high)))
        scores: Tensor = self.head(self.last(torch.cat((high, up), dim=1)))
        return scores


def unet(seed: int = 0, *, batch: int = 1, size: int = 64, width: int = 32) -> Built:
    torch.manual_seed(seed)
    return UNet(width).eval(), (torch.randn(batch, 3, size, size),)


def deep_mlp(seed: int = 0, *, batch: int = 8, width: int = 256, depth: int = 12) -> Built:
    """Small products and as many activations: what surrounds the products counts."""
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU())]
    return nn.Sequential(*layers).eval(), (torch.randn(batch, 64, width),)


FURTHER: dict[str, Callable[..., Built]] = {"mixer": mixer, "u-net": unet, "deep-mlp": deep_mlp}
ALL = {**MODELS, **FURTHER}
_SMALL = {**SMALL, "mixer": {"tokens": 16, "width": 32, "depth": 1}, "u-net": {"size": 16, "width": 8},
          "deep-mlp": {"batch": 1, "width": 32, "depth": 2}}  # fmt: skip


def ways(module: nn.Module, args: tuple[Any, ...]) -> tuple[dict[str, Run], Cost]:
    """What is timed, and what is predicted of it. Planned from shapes alone: to measure the model's numbers, as
    `convert` does, takes a dozen runs in bf16, which is what is slow on such a machine."""
    policy, device = policies.load("bf16-inference"), resolved(hardware.device("local"))
    found = captures(private_copy(module), (args, {}), policy, None, None)
    graph = found.modes[policy.mode].graph
    plan = planned(graph, policy, device).plan
    signature = inspect.signature(module.forward)
    converted = rewrite(found.modes, {policy.mode: plan}, signature=signature, missing=found.missing).eval()
    lowered, inputs = copy.deepcopy(module).bfloat16(), in_format(args, torch.bfloat16)
    runs: dict[str, Run] = {
        "fp32": lambda: module(*args),
        "all bf16": lambda: lowered(*inputs),
        "converted": lambda: converted(*args),
    }
    return runs, cost(graph, plan, policy, device, NO_FACTS)


def timed(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {way: [] for way in runs}
    for run in runs.values():
        run()
    names = list(runs)
    for turn in range(rounds):
        for way in names[turn % len(names) :] + names[: turn % len(names)]:
            wall, own = time.perf_counter(), time.process_time()
            runs[way]()
            taken[way].append(min(time.perf_counter() - wall, time.process_time() - own))
    return taken


def judge(predicted: dict[str, float], taken: dict[str, list[float]]) -> list[list[Any]]:
    """A row for each way but the first: seconds and ratios to the first, predicted and measured, and how far off."""
    (first, *others), rows = list(taken), []
    for way in others:
        ratios = [mine / theirs for mine, theirs in zip(taken[way], taken[first], strict=True)]
        said, found = predicted[way] / predicted[first], statistics.median(ratios)
        rows.append([way, predicted[way], statistics.median(taken[way]), said, found, said / found - 1])
    return rows


@torch.no_grad()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Predicted time against measured time on this CPU.")
    parser.add_argument("--models", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="toy sizes, to try this script itself")
    options = parser.parse_args(argv)
    table, missed = [], []
    for name in options.models:
        module, args = ALL[name](**(_SMALL[name] if options.small else {}))
        runs, spent = ways(module, args)
        predicted = {"fp32": spent.seconds_high, "all bf16": spent.seconds_low, "converted": spent.seconds}
        taken = timed(runs, options.rounds)
        print(f"{name}: fp32 {statistics.median(taken['fp32']) * 1e3:.1f} ms, predicted "
              f"{predicted['fp32'] * 1e3:.1f} ms", flush=True)  # fmt: skip
        for way, said, found, ratio, real, off in judge(predicted, taken):
            row = [name, way, f"{said * 1e3:.1f}", f"{found * 1e3:.1f}", f"{ratio:.2f}", f"{real:.2f}", f"{off:+.0%}"]
            print("  ".join(row), file=sys.stderr, flush=True)
            table.append(row)
            missed += [f"{name}, {way}"] if abs(off) > LIMIT else []
    headers = ["model", "runs as", "ms predicted", "ms measured", "/ fp32, predicted", "/ fp32, measured", "off"]
    print(tabulate(table, headers=headers, disable_numparse=True, colalign=("left",) * 2 + ("right",) * 5))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; off by more than {LIMIT:.0%}: "
          + (", ".join(missed) or "none"))  # fmt: skip
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
