"""Is a searched plan as good as luck and as greed? Six models, three budgets each.

For each model and budget the search's plan stands beside the best of 200 random plans and beside greedy removal: start
from the fastest plan, raise the op with the largest share, until the measured error keeps to the budget. All choose
from the same (units that go together, recipes of the device, what is held high), all are priced by the same model, and
only plans that *measure* within the budget count; times that are the same to five digits are one. Random plans: each
draws how much of the model runs low, and then each unit's format; every one of the 200 is run. Run as a script it
prints the table and writes it as JSON:

    python -m tests.benchmarks.search_quality [--plans 200] [-o search_quality.json]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from precision_audit import pipeline
from precision_audit.plan.choosing import HIGH, LOW
from precision_audit.searching import Found, running, search, solving
from precision_audit.searching.frontier import Planner, Solved
from precision_audit.searching.hull import shown
from tests.models import load_example
from tests.searching.small import TOY, Mlp, rows, seeded, transformer

BUDGETS = (1.5e-2, 2e-3, 1.5e-4)


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.body = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.norm(self.body(x)))
        y: Tensor = self.head(x.mean((2, 3)))
        return y


class Hazard(nn.Module):
    """Squares that leave fp16's range beside a product that does not mind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) * 300
        y: Tensor = self.second(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return y


class Experts(nn.Module):
    """Each row is a mixture of experts' answers, weighed by a router."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(48, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 48)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.router(x), -1)
        made = torch.stack([expert(x) for expert in self.experts], -1)
        y: Tensor = x + (made * weights.unsqueeze(-2)).sum(-1)
        return y


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    module = load_example("02_transformer_block.py")
    torch.manual_seed(0)
    model = module.build_model()
    inputs = module.example_inputs() if callable(module.example_inputs) else module.example_inputs
    return model, inputs if isinstance(inputs, tuple) else (inputs,)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "mlp": lambda: (Mlp(), rows(64, 64)),
    "transformer": lambda: (transformer(32, 1), rows(2, 16, 32)),
    "convnet": lambda: (Convnet().eval(), (torch.randn(4, 3, 12, 12, generator=seeded(1)),)),
    "hazard": lambda: (Hazard(), rows(64, 64)),
    "experts": lambda: (Experts(), rows(64, 48)),
    "example 02": _example,
}


@dataclass(frozen=True)
class Row:
    """Predicted seconds; infinite where no plan of that kind measures within the budget."""

    model: str
    budget: float
    searched: float
    measured: float
    runs: int
    random: float
    random_within: int
    greedy: float
    high: float

    @property
    def best_other(self) -> float:
        return min(self.random, self.greedy, self.high)


def rows_of(name: str, budgets: Sequence[float] = BUDGETS, plans: int = 200) -> Iterator[Row]:
    """The search and its rivals on one model."""
    named, pipeline.device_named = pipeline.device_named, lambda _: TOY
    try:
        model, args = MODELS[name]()
        found: Found | None = None
        measured: list[tuple[float, float]] | None = None
        for budget in budgets:
            limit = {"relative_l2": budget}
            found = search(model, args, budget=limit, built_only=True) if found is None else found.again(limit)
            measured = [*_random(found, plans)] if measured is None else measured
            within = [seconds for seconds, error in measured if error <= budget]
            yield Row(
                name, budget, found.search.seconds, found.measured["relative_l2"], found.runs,
                min(within, default=float("inf")), len(within), _greedy(found, budget), found.search.seconds_high,
            )  # fmt: skip
    finally:
        pipeline.device_named = named


def _random(found: Found, plans: int) -> Iterator[tuple[float, float]]:
    """Seconds and measured error of random plans."""
    rng = random.Random(0)
    planners = _planners(found)
    for number in range(plans):
        planner = planners[number % len(planners)]
        part, swapped = rng.random(), rng.random()
        forced = {}
        for unit in planner.units:
            recipes = _recipes(planner, unit)
            low = rng.choice(recipes) if recipes and rng.random() < swapped else LOW
            forced.update(dict.fromkeys(unit, low if rng.random() < part else HIGH))
        solved = planner.at(0.0, forced)
        yield solved.seconds, _error(found, solved)


def _greedy(found: Found, budget: float) -> float:
    """The unit with the largest share goes up a step (from a recipe to low, from low to high) until what is measured
    fits."""
    best = float("inf")
    for planner in _planners(found):
        solved = planner.fastest()
        forced = dict(planner.states(solved))
        while _error(found, solved) > budget:
            left = [unit for unit in planner.units if forced.get(unit[0], HIGH) != HIGH]
            if not left:
                break
            unit = max(left, key=lambda each: _share(planner, each, forced))
            forced.update(dict.fromkeys(unit, HIGH if forced[unit[0]] == LOW else LOW))
            solved = planner.at(0.0, forced)
        else:
            best = min(best, solved.seconds)
    return best


def _share(planner: Planner, unit: tuple[str, ...], forced: dict[str, str]) -> float:
    shares, swaps = planner._base.shares, planner._base.choices.shares
    return sum(swaps.get((key, forced[key]), shares.get(key, 0.0)) for key in unit)


def _planners(found: Found) -> list[Planner]:
    return [planner for (_, hopeful), planner in sorted(found.evidence.known.items()) if not hopeful]


def _recipes(planner: Planner, unit: tuple[str, ...]) -> list[str]:
    """Recipes that all of a unit have."""
    offered = [{swap.recipe for swap in planner._base.choices.swaps.get(key, ())} for key in unit]
    return sorted(set.intersection(*offered))


def _error(found: Found, solved: Solved) -> float:
    evidence = found.evidence
    if solved.error == 0 and all(state == HIGH for state in _states(found, solved).values()):
        return 0.0
    run = running.tried(solving.converted(evidence, solved), found._solution.limits[:1], evidence.reference, None)
    return float("inf") if run.raised else run.values[0]


def _states(found: Found, solved: Solved) -> dict[str, str]:
    return next(each for each in _planners(found) if each.low == solved.low).states(solved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("-o", "--output")
    given = parser.parse_args()
    made = []
    for name in given.models:
        for row in rows_of(name, plans=given.plans):
            made.append(row)
            print(
                f"{row.model:12} budget {row.budget:.0e}  searched {row.searched * 1e6:9.1f} µs "
                f"(error {row.measured:.1e}, {row.runs} runs)  random {row.random * 1e6:9.1f} ({row.random_within})  "
                f"greedy {row.greedy * 1e6:9.1f}  all high {row.high * 1e6:9.1f}  "
                f"{'ok' if shown(row.searched) <= shown(row.best_other) else 'WORSE'}",
                flush=True,
            )
    if given.output:
        with open(given.output, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in made], file, indent=2)


if __name__ == "__main__":
    main()
