"""A small ranking model with four lines that break in fp16, and what the audit says of each.

What it shows. Findings: the line, what was seen, what will happen, what to do. Squares of large features, a mask of
-1e9, an eps that fp16 does not hold and positions beyond 2048 are right in fp32 and wrong in fp16, each in its own way:
an infinity, an error of torch, the logarithm of zero, neighbours that become one. The conversion keeps these in fp32
and runs the rest in fp16. One forward each is compared with fp64:

    fp32              everything as written
    everything fp16   model.half(), the blunt way
    fp16-inference    converted

Run it:

    precision-audit examples/08_what_breaks.py --policy fp16-inference
    python examples/08_what_breaks.py
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tabulate import tabulate
from torch import Tensor, nn

import precision_audit as pa

WIDTH, ITEMS = 64, 24


class Ranker(nn.Module):
    """Scores items by their features and their position in a long list; the third of them is not to be chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(WIDTH, WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, features: Tensor, allowed: Tensor) -> Tensor:
        scale = torch.rsqrt(features.pow(2).mean(-1, keepdim=True) + 1e-6)
        hidden = torch.relu(self.inside(features * scale))
        positions = torch.arange(4001, 4001 + ITEMS, device=features.device).to(features.dtype)
        hidden = hidden + torch.sin(positions * 0.5).unsqueeze(-1)
        logits = self.score(torch.tanh(self.query(hidden))).squeeze(-1)
        logits = logits.masked_fill(~allowed, -1e9)
        chance = torch.softmax(logits, -1)
        return torch.log(chance + 1e-9)


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return Ranker().eval()


def example_inputs() -> tuple[Tensor, Tensor]:
    """Features as raw counts reach them: up to some hundreds."""
    generator = torch.Generator().manual_seed(1)
    allowed = torch.ones(4, ITEMS, dtype=torch.bool)
    allowed[:, 2] = False
    return torch.randn(4, ITEMS, WIDTH, generator=generator) * 150, allowed


@dataclass(frozen=True)
class Outcome:
    """How one way of running the model compares with fp64, or why it did not run."""

    relative_l2: float
    error: str = ""


def compared(run: nn.Module, features: Tensor, allowed: Tensor, exact: Tensor) -> Outcome:
    try:
        output = run(features, allowed).double()
    except RuntimeError as error:
        return Outcome(float("nan"), str(error).splitlines()[0])
    return Outcome(((output - exact).norm() / exact.norm()).item())


def main(argv: Sequence[str]) -> dict[str, Outcome]:
    del argv
    model, (features, allowed) = build_model(), example_inputs()
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(features.double(), allowed)
        converted = pa.convert(model, (features, allowed), policy="fp16-inference")
        outcomes = {
            "fp32": compared(model, features, allowed, exact),
            "everything fp16": compared(copy.deepcopy(model).half(), features.half(), allowed, exact),
            "fp16-inference": compared(converted.module, features, allowed, exact),
        }
    rows = [(name, each.error or f"{each.relative_l2:.1e}") for name, each in outcomes.items()]
    print(tabulate(rows, ("run", "relative L2 against fp64"), disable_numparse=True))
    return outcomes


if __name__ == "__main__":
    main(sys.argv[1:])
