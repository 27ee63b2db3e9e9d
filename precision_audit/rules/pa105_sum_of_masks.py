"""PA105 sum of masks or of a mask and scores

What it does: reports a sum that leaves the low format's range because one summand is a mask near its lowest number:
the format's own minimum plus a score below -16 (fp16), or two masks.
Why it is a hazard: the sum is -inf. A row in which that holds for every element, a padded query, becomes NaN in the
softmax, where the high format rounds the sum back to its minimum.
What to do: fill instead of adding (`masked_fill`), combine masks with `torch.minimum`, or clamp the sum.
References: huggingface/transformers on masks of the format's minimum.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example
from precision_audit.rules.families import base
from precision_audit.rules.overflow import overflowing
from precision_audit.rules.reach import Origin


def check(context: Context) -> Iterator[Finding]:
    remedy = "masked_fill instead of a sum, torch.minimum of the masks, or a clamp after the sum"
    return overflowing(__name__, "PA105", context, _says, remedy)


def _says(origin: Origin) -> str:
    return f"{base(origin.op)}: a mask at the end of the range, and something negative added to it"


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            low = torch.full_like(x, torch.finfo(x.dtype).min)
            s = (x - 40.0) + torch.where(x > 0, torch.zeros_like(x), low)  # PA105
            y: torch.Tensor = s.softmax(-1)
            return y

    return Example(Model(), (torch.tensor([[1.0, -1.0], [-1.0, -2.0]]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = (x - 40.0).masked_fill(x <= 0, torch.finfo(x.dtype).min).softmax(-1)
            return y

    return Example(Model(), (torch.tensor([[1.0, -1.0], [-1.0, -2.0]]),), policy="fp16-inference")
