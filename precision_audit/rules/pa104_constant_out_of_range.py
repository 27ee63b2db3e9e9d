"""PA104 constant out of range

What it does: reports a number in the code, or a tensor made of one, that the low format cannot hold: a mask of -1e9, a
fill, a factor. A number that follows the format (`torch.finfo(x.dtype).min`) and a true infinity are no findings; a
mask that is the same for all inputs, and leaves something in every row of the example, is a note.
Why it is a hazard: fills such as masked_fill and full raise. Elsewhere the number becomes infinite: zero times it, or a
row of only such numbers in a softmax, is NaN.
What to do: `torch.finfo(x.dtype).min`, -inf where a row cannot be masked as a whole, or -1e4.
References: "value cannot be converted to type c10::Half without overflow".
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example
from precision_audit.rules.families import base
from precision_audit.rules.overflow import extreme, overflowing
from precision_audit.rules.reach import Origin


def check(context: Context) -> Iterator[Finding]:
    remedy = "torch.finfo(x.dtype).min, or a mask that is applied in high precision"
    return overflowing(__name__, "PA104", context, _says, remedy)


def _says(origin: Origin) -> str:
    return f"{base(origin.op)}: the constant {extreme(origin):.4g}"


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x.masked_fill(x < 0, -1e9).softmax(-1)  # PA104
            return y

    return Example(Model(), (torch.tensor([[1.0, -1.0]]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x.masked_fill(x < 0, torch.finfo(x.dtype).min).softmax(-1)
            return y

    return Example(Model(), (torch.tensor([[1.0, -1.0]]),), policy="fp16-inference")
