"""Predicted over measured error of converted models: the whole distribution, and the share within 0.5 to 2.

    python -m tests.benchmarks.predicted_error [NAME …] [--only suite|timm|hf]

Models: those of the suite that are captured in fp32 and have float outputs, the four of the benchmarks made small, and
20 of timm and 20 of transformers (`public_models`, a list that was fixed before any result was seen). Formats: bf16,
fp16, and fp8 (each linear that a backend takes is swapped, recipe rowwise, its fp8 product emulated on a CPU; bf16
around it). Plans: everything low, products only, and one at random (each op low with probability a half). One line per
(model, format, plan): the error predicted from the shares of one analysis, the error measured by running that plan, and
their ratio; both are the root of the sum over outputs of squared relative L2 errors on the example.

A triple whose measured error is zero, lost in fp32's own rounding (below 3e-6) or not finite has no ratio and is
counted apart, and so is a model that cannot be captured. Linears with a tied weight are not swapped.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from precision_audit import backends, policy
from precision_audit.analyse.beside import beside
from precision_audit.analyse.deltas import Deltas
from precision_audit.analyse.predicted_error import predicted_error
from precision_audit.analyse.sensitivity import sensitivity
from precision_audit.capture import Captured, capture, private_copy
from precision_audit.decide import Decided, decide
from precision_audit.hardware import device
from precision_audit.ops import has_label
from precision_audit.plan import plan as cheapest
from precision_audit.records import Decision, Hardware, InputError, Plan, Policy, Rule, Share, Swap
from precision_audit.rewrite import rewrite, unchanged
from precision_audit.verify.runs import Batch, Conditions, run
from tests import models
from tests.benchmarks import models as benchmark_models

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

FORMATS = ("bf16", "fp16", "fp8")
PLANS = ("all low", "products", "random")
PRODUCTS = frozenset({"matmul", "conv", "attention", "rnn"})
NOISE = 3e-6  # what fp32 itself rounds, in a model of some depth
WITHIN = (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Triple:
    model: str
    format: str
    plan: str
    predicted: float
    measured: float
    unknown: int  # shares without a gradient path

    @property
    def ratio(self) -> float | None:
        """None where there is nothing to compare with."""
        return self.predicted / self.measured if NOISE < self.measured < math.inf else None


def triples(name: str, built: Built, formats: Sequence[str] = FORMATS, plans: Sequence[str] = PLANS) -> list[Triple]:
    """All triples of one model: two analyses, then one run per plan."""
    module, args, kwargs = built
    captured = capture(private_copy(module), args, kwargs, mode="inference")
    found: list[Triple] = []
    for base in ("bf16", "fp16"):
        wanted = [each for each in formats if (each if each != "fp8" else "bf16") == base]
        if wanted:
            found.extend(_of_base(name, captured, (args, kwargs), base, wanted, plans))
    return found


def _of_base(
    name: str, captured: Captured, batch: Batch, base: str, formats: Sequence[str], plans: Sequence[str]
) -> Iterator[Triple]:
    made, hardware = policy_of(base), device("local")
    swaps = _swaps(captured) if "fp8" in formats else ()
    deltas = Deltas(captured.graph, swaps)
    beside(captured, made, hardware, batch, deltas)
    shares, _ = sensitivity(captured, made, hardware, batch, deltas)
    for format in formats:
        for kind in plans:
            plan = planned(captured, made, hardware, kind, swaps if format == "fp8" else ())
            yield measured(name, captured, batch, format, kind, plan, shares)


def measured(
    name: str, captured: Captured, batch: Batch, format: str, kind: str, plan: Plan, shares: tuple[Share, ...]
) -> Triple:
    """One plan run beside the captured model, under the same draws."""
    mode = captured.graph.mode
    conditions = Conditions(training=False, draws=True)
    expected = run(unchanged({mode: captured}), batch, conditions).outputs
    got = run(rewrite({mode: captured}, {mode: plan}), batch, conditions).outputs
    total = 0.0
    for key, reference in expected.items():
        if reference.is_floating_point() or reference.is_complex():
            finite = torch.isfinite(reference)
            apart, whole = (got[key] - reference)[finite].abs().double(), reference[finite].abs().double()
            total += (float(apart.norm()) / (float(whole.norm()) or 1.0)) ** 2
    predicted = predicted_error(shares, plan, captured.graph)
    return Triple(name, format, kind, predicted, total**0.5, sum(not share.known for share in shares))


def policy_of(low: str) -> Policy:
    everything = Rule("everything", "benchmark", f"safe-in-{low}")
    return Policy(f"benchmark-{low}", "", "", "inference", "fp32", low, (everything,))


def planned(captured: Captured, made: Policy, hardware: Hardware, kind: str, swaps: tuple[Swap, ...]) -> Plan:
    """The plan of one kind; every op that has no choice stays as it is decided."""
    graph = captured.graph
    ops = {op.key: op for op in graph.ops}
    draw = random.Random(0)
    drawn = {op.key: draw.random() < 0.5 for op in graph.ops}
    decisions, low = [], set()
    for each in decide(graph, made, hardware, {}).decisions:
        op = ops[each.op]
        keep = (kind == "products" and op.kind not in PRODUCTS) or (kind == "random" and not drawn[op.key])
        if each.chosen == made.low and not (keep and has_label(op)):
            low.add(op.key)
        kept = each.chosen == made.low and op.key not in low
        decisions.append(Decision(op.key, "keep-fp32", "fp32", "benchmark") if kept else each)
    taken = tuple(swap for swap in swaps if swap.op in low)
    by_op = {swap.op: swap for swap in taken}
    chosen = tuple(
        replace(each, classification="fp8-eligible", chosen=f"fp8 {by_op[each.op].recipe}")
        if each.op in by_op
        else each
        for each in decisions
    )
    return cheapest(graph, Decided(chosen, taken, (), ()), made, hardware)


def _swaps(captured: Captured) -> tuple[Swap, ...]:
    text = "name: fp8\nmode: inference\nformats: {high: fp32, low: bf16}\nrules:\n"
    rule = "  - {name: linears, op: linear, class: fp8-eligible, backend: torchao, recipe: rowwise}\n"
    asked = policy.parse(text + rule + "  - {name: rest, class: safe-in-bf16}\n", "fp8.yaml")
    tied = {name for names in captured.graph.storages for name in names}
    offered = decide(captured.graph, asked, device("h100"), backends.listed()).swaps  # run emulated
    return tuple(swap for swap in offered if f"{swap.module}.weight" not in tied)


def listed(only: str = "") -> dict[str, Callable[[], Built]]:
    """The models by name, in the order they are run."""
    found: dict[str, Callable[[], Built]] = {}
    if only in ("", "suite"):
        left_out = models.NOT_FP32 | {"integer_output"}
        for name in models.MODELS:
            if name not in left_out:
                found[name] = _suite(name)
        for name, make in benchmark_models.MODELS.items():
            found[f"bench_{name}"] = _bench(make, benchmark_models.SMALL[name])
    if only != "suite":
        from tests.benchmarks import public_models

        kinds = (only,) if only else ("timm", "hf")
        found.update({name: call for name, call in public_models.MODELS.items() if name.startswith(kinds)})
    return found


def _suite(name: str) -> Callable[[], Built]:
    return lambda: models.build(name)


def _bench(make: Callable[..., Any], sizes: dict[str, int]) -> Callable[[], Built]:
    def call() -> Built:
        module, args = make(**sizes)
        return module, args, {}

    return call


def summary(found: Sequence[Triple]) -> Iterator[str]:
    """The distribution, whole and by format and plan."""
    for title, some in (
        ("all", list(found)),
        *((each, [t for t in found if t.format == each]) for each in FORMATS),
        *((each, [t for t in found if t.plan == each]) for each in PLANS),
    ):
        ratios = sorted(t.ratio for t in some if t.ratio is not None)
        if not ratios:
            continue
        inside = sum(WITHIN[0] <= ratio <= WITHIN[1] for ratio in ratios)
        at = [ratios[min(len(ratios) - 1, int(q * len(ratios)))] for q in (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)]
        yield (
            f"{title:10s} {len(ratios):4d} triples  within {WITHIN[0]}-{WITHIN[1]}: {inside / len(ratios):6.1%}   "
            "min 5% 25% median 75% 95% max: " + " ".join(f"{value:.2f}" for value in at)
            + f"   nothing to compare: {len(some) - len(ratios)}"
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--only", default="", choices=("", "suite", "timm", "hf"))
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: list[Triple] = []
    for name, call in listed(given.only).items():
        if given.names and name not in given.names:
            continue
        started = time.perf_counter()
        try:
            some = triples(name, call())
        except (InputError, ImportError, RuntimeError) as error:
            print(f"{name}: left out, {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
            continue
        for each in some:
            ratio = f"{each.ratio:8.2f}" if each.ratio is not None else "       -"
            unknown = f"  {each.unknown} unknown" if each.unknown else ""
            print(
                f"{each.model:32s} {each.format:5s} {each.plan:9s} "
                f"{each.predicted:.3e} {each.measured:.3e} {ratio}{unknown}",
                flush=True,
            )
        print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
        found.extend(some)
    print("\n".join(summary(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
