"""PA414 gradients vanish in e4m3

What it does: reports a linear whose output's gradient, quantised as its recipe does in training steps that were taken,
loses a part that counts: elements that become zero and make up a hundredth or more of the sum of magnitudes.
Why it is a hazard: recipes that are e4m3 throughout (rowwise, MXFP8, 128-blocks) give gradients four exponent bits, 17
powers of two below a row's largest. The gradient of a large softmax is one number near -1 and tens of thousands below
1e-5 that sum to as much: they vanish, and what is left of the row does not sum to zero any more.
What to do: keep that layer (the head, as a rule) in the low format; `tensorwise` has e5m2 gradients, 32 powers of two.
References: Micikevicius et al., "FP8 formats for deep learning" (arXiv 2209.05433), e5m2 for gradients; torchao's
rowwise recipe, which is e4m3 in all operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.swapping import percent, swapping

if TYPE_CHECKING:
    import torch
    from torch import nn

_COUNTS = 0.01  # of the sum of magnitudes


def check(context: Context) -> Iterator[Finding]:
    for each in swapping(context):
        gradient = each.operand("gradient")
        if gradient is None or context.graph.mode != "training" or gradient.format != "fp8_e4m3fn":
            continue
        if gradient.mass < _COUNTS:
            continue
        wide = each.operand("gradient", "fp8_tensorwise")
        helps = wide is not None and wide.mass < gradient.mass / 2
        yield found(
            __name__,
            "warning",
            each.op,
            f"{each.name}: {percent(gradient.flushed)} of its output's gradient becomes zero in e4m3 under "
            f"{each.recipe.name} → {percent(gradient.mass)} of the sum of magnitudes is lost",
            Evidence(
                "OBSERVED",
                f"in training steps; e5m2 with one scale loses {percent(wide.mass if wide else 0.0)}",
                (("flushed", gradient.flushed), ("sum", gradient.mass), ("amax", gradient.amax)),
            ),
            remedy=f"keep {each.name} in {context.policy.low}" + (", or recipe: tensorwise" if helps else ""),
            refuses=(each.op.key,),
        )


def bad() -> Example:
    return _example(classes=65536)


def good() -> Example:
    return _example(classes=64)


def _example(classes: int) -> Example:
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.decoder = nn.Linear(16, classes)
            nn.init.normal_(self.decoder.weight, std=0.5)  # logits of a standard deviation of 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.decoder(x)  # PA414
            return y

    def loss(output: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, torch.arange(len(output)))

    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    model: nn.Module = Tagger()
    return Example(model, (x,), policy="fp8-training-hopper", loss=loss)
