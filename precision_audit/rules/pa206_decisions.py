"""PA206 decisions that flip

What it does: reports choices that come out differently in the low format: argmax, top-k, sorting, comparisons, signs,
floor and round, numbers that become indices; where the choice is an output, or another number is off by more than the
policy allows because of it. A mask that only takes out what is near zero anyway, as in a ReLU, is none of these.
Why it is a hazard: a choice has no small error. Scores that differ by less than a step of the format tie, and the first
one wins: another token, another expert, another order. The scores' own relative error is small and tells nothing.
What to do: compute the scores in fp32 from the last product on (`head(x).float()` is too late), and squash after
ranking, not before: sigmoid brings confident scores closer together than their rounding.
References: PyTorch docs on `torch.topk` and ties; Switch Transformers (arXiv 2101.03961) on the router's precision.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit import ops
from precision_audit.records import Evidence, Finding, Severity
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import JUMPS, STEPS
from precision_audit.rules.leaps import RUINED, Leap, at_stake, base, evidence, leaps, percent, severity, told
from precision_audit.rules.upstream import Upstream

_RARE = 0.01  # share of choices; near ties there are always some


def check(context: Context) -> Iterator[Finding]:
    upstream = Upstream(context)
    for leap in leaps(context, "PA206"):
        chosen = not any(upstream.is_float(value) for value in leap.at.values) or leap.at.op in ("topk", "sort")
        decider = leap.notes["decider"]
        if chosen:
            shown = f"{percent(leap.error)} of the results of {decider} change in {context.low.name}"
        else:
            shown = f"{decider} chooses otherwise; {told(leap, context)}"
        crowded = leap.notes["crowded"]
        near = "numbers lie next to its step" if _steps(decider) else "scores nearly tie"
        what = f"{crowded} brings scores so close that they tie" if crowded else f"{base(leap.op.key)}: {near}"
        yield found(
            __name__,
            _severity(leap) if chosen else severity(leap),
            leap.op,
            f"{what} → {shown}",
            evidence(leap, context),
            remedy="rank before squashing, from scores in fp32" if crowded else "compute what is compared in fp32",
            pins=leap.pins,
        )
    if at_stake(context):
        yield from _close(context, {key for leap in leaps(context, "PA206") for key in (leap.op.key, *leap.pins)})


def _close(context: Context, known: set[str]) -> Iterator[Finding]:
    """Decisions that have not changed on these inputs, but whose margins are no larger than the error."""
    upstream, outputs = Upstream(context), set(context.graph.outputs)
    for flip in context.facts.flips:
        op = upstream.ops[flip.op]
        integers = [value for value in op.values if not upstream.is_float(value)]
        # what a mask comes to is seen in the low model; a rank is a number to somebody
        used = any(value in outputs or (not _steps(op.op) and context.readers.get(value)) for value in integers)
        changed = any(context.beside[value].changed for value in integers if value in context.beside)
        if op.key in known or changed or not used or flip.at_risk < _RARE:
            continue
        yield found(
            __name__,
            "note",
            op,
            f"{base(op.key)} has not changed on these inputs, but {percent(flip.at_risk)} of its results may in "
            f"{context.low.name}",
            Evidence("OBSERVED", "margins against the error of the scores", (("risk", flip.at_risk),)),
            remedy="compute what is compared in fp32",
        )


def _steps(name: str) -> bool:
    """Whether an op decides number by number, and not between them."""
    row = ops.row(name)
    return name in STEPS | JUMPS or (row is not None and row.kind == "comparison")


def _severity(leap: Leap) -> Severity:
    if leap.error >= RUINED:
        return "error"
    return "warning" if leap.error >= _RARE else "note"


def bad() -> Example:
    import torch
    from torch import nn

    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head = nn.Linear(64, 1000)
            nn.init.constant_(self.head.bias, 16.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.argmax(self.head(x), -1)  # PA206

    return Example(Greedy(), (torch.randn(200, 64, generator=torch.Generator().manual_seed(0)),))


def good() -> Example:
    import torch
    from torch import nn

    class Sure(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 16, bias=False)
            self.head.weight = nn.Parameter(8 * torch.eye(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.argmax(self.head(x), -1)

    return Example(Sure(), (nn.functional.one_hot(torch.arange(64) % 16, 16).float(),))
