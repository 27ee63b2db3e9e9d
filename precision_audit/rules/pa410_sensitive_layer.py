"""PA410 layer that is too sensitive to be quantised

What it does: reports a linear that is to be swapped and whose quantisation costs far more than is usual: its part of
the outputs' predicted error is what takes them beyond the policy's tolerance, or a choice made by its output (an
expert, a token) comes out differently. More is more than the others cost, or than the format costs a layer of ordinary
numbers: a channel a million times the others takes the digits of all of them, in every token's row. Says which part it
plays: router, head, modulation, first or last layer.
Why it is a hazard: errors are not shared out evenly. A modulation (adaLN, FiLM) multiplies the whole stream, a router's
choice has no small error, the last layer has nothing behind it that would average. They are small as a rule, so that
their time is nothing beside the accuracy that they cost.
A relative L2 over everything is decided by the largest rows: where the median over rows is far from it, that is said.
What to do: keep the layer in the low format: the plan does, where the tolerance or a choice is at stake; else it is a
note.
References: DiT (arXiv 2212.09748) on adaLN; Switch Transformers (arXiv 2101.03961) on the router's precision; torchao
float8 README, which filters the output layer.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from precision_audit.quantise import SCHEMES
from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.pa411_outlier import suffers
from precision_audit.rules.roles import chooses, role
from precision_audit.rules.sparing import outputs
from precision_audit.rules.swapping import Swapping, percent, swapping

if TYPE_CHECKING:
    from torch import nn

LAST = 1  # PA206 speaks first of choices that change in the low format already

_FEW = 3  # layers from which on their median says what is usual
_ABOVE = 4.0  # times the median of the squares
_FAR_ABOVE = 8.0  # likewise, for a note where the tolerance is met
_MOST = 0.25  # of all squares
_NEAR = 0.25  # of the tolerance, below which nobody needs to be told
_DISAGREE = 2.0  # times: the median over rows beside the error of the whole
_CHANGED = 0.01  # share of choices
USUAL = {"fp8_e4m3fn": 0.038, "fp4_e2m1": 0.16, "int8": 0.011}  # relative L2 of a product of normal numbers, by element


def check(context: Context) -> Iterator[Finding]:
    layers = list(swapping(context))
    told = {finding.op for finding in context.told if finding.refuses}
    for each in layers:
        if each.op.key not in told and (decision := _decision(context, each)) is not None:
            told.add(each.op.key)
            yield decision
    squares = _squares(context, layers)
    limit = dict(context.policy.tolerances).get("relative_l2", 0.0) ** 2 * outputs(context.graph)
    if limit:
        yield from _by_error(context, [each for each in layers if each.op.key not in told], squares, limit)


def _squares(context: Context, layers: Sequence[Swapping]) -> dict[str, float]:
    known = {share.source: share.share for share in context.facts.shares if share.known and not share.pair}
    return {each.op.key: known[f"swap:{each.op.key}"] for each in layers if f"swap:{each.op.key}" in known}


def _by_error(
    context: Context, layers: Sequence[Swapping], squares: dict[str, float], limit: float
) -> Iterator[Finding]:
    total = sum(squares.values())
    left = total
    for each in sorted(layers, key=lambda one: -squares.get(one.op.key, 0.0)):
        square = squares.get(each.op.key, 0.0)
        others = [value for key, value in squares.items() if key != each.op.key]
        usual = statistics.median(others) if len(others) >= _FEW - 1 else 0.0
        own = min(each.made.error, USUAL[SCHEMES[each.recipe.scheme].element]) ** 2  # which any layer has
        worse = square > _ABOVE * (usual or own) or each.made.error**2 > _ABOVE * own  # than others, or than the format
        breaks = left > limit and worse and square >= _MOST * limit
        stands_out = square > _FAR_ABOVE * usual and square >= _MOST * total and square >= _NEAR**2 * limit
        if not breaks and not (stands_out and usual and role(context, each.op)):
            return
        left -= square
        yield _told(context, each, square, usual, limit, breaks)


def _told(context: Context, each: Swapping, square: float, usual: float, limit: float, breaks: bool) -> Finding:
    part = role(context, each.op)
    error, tolerance, others = square**0.5, limit**0.5, usual**0.5
    beside = f", the median of the others {percent(others)}" if usual else ""
    return found(
        __name__,
        "warning" if breaks else "note",
        each.op,
        f"{each.name}{f' ({part})' if part else ''}: fp8 {each.recipe.name} puts the outputs off by {percent(error)}"
        f"{beside}; the tolerance is {percent(tolerance)}",
        Evidence(
            "OBSERVED",
            f"predicted from the error of its product ({percent(each.made.error)}{_by_rows(each)}) and the outputs' "
            "gradient",
            (("error", error), ("others", others), ("tolerance", tolerance), ("rows", each.made.rows)),
        ),
        remedy=f"keep {each.name} in {context.policy.low}",
        refuses=(each.op.key,) if breaks else (),
    )


def _by_rows(each: Swapping) -> str:
    """That a few rows (tokens) decide the error of the whole, where they do."""
    whole, rows = each.made.error, each.made.rows
    if max(whole, rows) <= _DISAGREE * min(whole, rows):
        return ""
    return f"; half of its rows are off by more than {percent(rows)}: a few rows decide the whole"


def _decision(context: Context, each: Swapping) -> Finding | None:
    """A choice that quantisation changes in more rows than blocks of 32 and the low format would have to answer for."""
    choice = chooses(context, each.op)
    changed = each.made.changed
    if choice is None or changed < _CHANGED or suffers(each.schemes, each.recipe.scheme):
        return None
    part = role(context, each.op)
    return found(
        __name__,
        "warning",
        each.op,
        f"{each.name} ({part}): {choice.op} chooses by it, and in fp8 {each.recipe.name} another of its outputs is the "
        f"largest in {percent(changed)} of the rows",
        Evidence("OBSERVED", f"its product quantised beside the captured one, on the example; read by {choice.key}",
                 (("changed", changed), ("error", each.made.error))),
        remedy=f"keep {each.name} in {context.policy.low}, better in {context.policy.high}: it is small",
        of="choice",
        refuses=(each.op.key,),
    )  # fmt: skip


def bad() -> Example:
    return _example(experts=True)


def good() -> Example:
    return _example(experts=False)


def _example(experts: bool) -> Example:
    import torch
    from torch import nn

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.router = nn.Linear(64, 16)
            self.experts = nn.Parameter(torch.randn(16, 64) * 0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.router(x)  # PA410
            if not experts:
                return torch.softmax(scores, -1) @ self.experts
            weight, index = torch.topk(torch.softmax(scores, -1), 2)
            return (weight[..., None] * self.experts[index]).sum(-2)

    x = torch.randn(128, 64, generator=torch.Generator().manual_seed(0))
    model: nn.Module = Mixture()
    args: tuple[Any, ...] = (x,)
    return Example(model, args, policy="fp8-training-hopper")
