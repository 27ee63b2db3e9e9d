"""PA411 outlier under a scale that it shares

What it does: reports a linear that is to be swapped under one scale per tensor (or per row) in which so large a number
lies that ordinary tokens or output features lose their digits, or all of them, in the emulated product.
Why it is a hazard: the largest number sets the scale. e4m3 reaches from 448 down to 2^-9, 17 powers of two; what lies
further below is zero and what lies near that end has one bit. One token of 6e4 beside activations of 0.3 leaves every
other token a quarter of its value off, and the error of the whole, which that one token makes up, does not show it.
What to do: `recipe: rowwise`, which gives each token and each output feature a scale; where a row itself holds the
outlier, blocks of 32 (mxfp8) or the low format. The plan leaves the layer unswapped.
References: unslothai/unsloth PR 6772; Dettmers et al., "LLM.int8()" (arXiv 2208.07339) on outlier features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit.quantise import ROW, SCHEMES, WHOLE
from precision_audit.recipes import RECIPES
from precision_audit.records import Evidence, Finding, Quantised
from precision_audit.rules import Context, Example, found
from precision_audit.rules.swapping import Swapping, percent, swapping

if TYPE_CHECKING:
    from torch import nn

_LOST = 0.1  # relative error of half of the rows or columns; e4m3 itself makes 0.04
_MORE = 2.5  # times what blocks leave of it, from which on the shared scale is to blame
_BLOCKS = "mxfp8_e4m3"
_ROWS = "fp8_rowwise"


def check(context: Context) -> Iterator[Finding]:
    for each in swapping(context):
        if SCHEMES[each.recipe.scheme].group not in (WHOLE, ROW) or not suffers(each.schemes, each.recipe.scheme):
            continue
        error, blocks = worst(each.made), worst(each.schemes[_BLOCKS])
        of, which = ("input", "row (token)") if each.made.rows >= each.made.columns else ("weight", "column (feature)")
        operand = each.operand(of)
        assert operand is not None
        shared = "one scale" if SCHEMES[each.recipe.scheme].group == WHOLE else "a scale per row"
        yield found(
            __name__,
            "warning",
            each.op,
            f"{each.name}: its {of} reaches {operand.amax:.3g}, 2^{operand.headroom:.0f} times the median, under "
            f"{shared} → the median {which} is off by {percent(error)} in fp8 {each.recipe.name}",
            Evidence(
                "OBSERVED",
                f"{percent(error)} with {shared}, {percent(blocks)} with scales of 32; "
                f"{percent(operand.flushed)} of the {of} becomes zero",
                (("error", error), ("blocks", blocks), ("amax", operand.amax), ("flushed", operand.flushed)),
            ),
            remedy=_remedy(each, context.policy.low),
            of=of,
            refuses=(each.op.key,),
        )


def worst(made: Quantised) -> float:
    """Of half of its rows, or of half of its columns."""
    return max(made.rows, made.columns)


def suffers(schemes: dict[str, Quantised] | Any, scheme: str) -> bool:
    """Whether blocks would leave ordinary rows and columns their digits, and the scheme does not."""
    error = worst(schemes[scheme])
    return error >= _LOST and error >= _MORE * worst(schemes[_BLOCKS])


def _remedy(each: Swapping, low: str) -> str:
    if each.recipe.scheme != _ROWS and not suffers(each.schemes, _ROWS):
        return f"recipe: {_by_row(each)}, or keep {each.name} in {low}"
    return f"keep {each.name} in {low}, or give blocks of 32 a scale (mxfp8, on Blackwell)"


def _by_row(each: Swapping) -> str:
    """The first recipe of the same backend with a scale per row."""
    rows = [row.name for row in RECIPES.values() if row.scheme == _ROWS and row.activations]
    own = [row.name for row in RECIPES.values() if row.backend == each.recipe.backend and row.name in rows]
    return (own or rows)[0]


def bad() -> Example:
    return _example(outlier=6e4)


def good() -> Example:
    return _example(outlier=3.0)


_POLICY = """name: mine
extends: bf16-training
mode: training
device: h100
rules:
  - {name: linears, op: linear, class: fp8-eligible, backend: torchao, recipe: tensorwise}
"""


def _example(outlier: float) -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.down = nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.layer_norm(self.down(x), (32,))  # PA411

    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)) * 0.3
    x[5, 9] = outlier
    model: nn.Module = Net()
    return Example(model, (x,), policy=_POLICY)
