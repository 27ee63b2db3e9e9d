"""PA401 linear refused by the fp8 backend

What it does: names every linear, and every grouped product of experts, that the policy would have in fp8 and that may
not be: it stays in the low format, with the reason. What may be and is not worth it is PA403's.
Why it is a hazard: it is not a danger to the result; but a reader of "fp8" should know which layers are not, and most
refusals come from a size that padding would mend: fp8 kernels want K and N in multiples of 16.
What to do: pad the size as the fix says (a vocabulary, a class count), in the model, or leave the layer as it is.
References: the alignment checks of torch's `_scaled_mm`; pytorch/ao issues 571, 1268 and 3111.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.pa306_functional_linear import is_functional
from precision_audit.rules.pa404_device_lacks import lacked

if TYPE_CHECKING:
    from torch import nn

_SIZE = re.compile(r"\b([KNM])=(\d+) is not a multiple of (\d+)")


def check(context: Context) -> Iterator[Finding]:
    ops, lacking = context.by_key(), lacked(context)
    for refusal in context.refusals:
        op = ops[refusal.op]
        if op.key in lacking or refusal.not_worth or is_functional(op, context.graph):
            continue  # PA404 says it once for all, PA403 and PA306 say more
        if refusal.reason.startswith("rule "):
            continue  # the rule that asked for it does
        stays = context.decisions[op.key].chosen or context.policy.low
        pads = _pads(refusal.reason)
        yield found(
            __name__,
            "note",
            op,
            f"{op.module or 'linear'}: stays {stays}: {refusal.reason}",
            Evidence("PROVED", f"backend {refusal.backend}: {refusal.reason}"),
            remedy=f"{pads} to make it eligible" if pads else "",
        )


def _pads(reason: str) -> str:
    """`pad N to 16`; the batch is not padded but chosen."""
    steps = []
    for name, size, multiple in _SIZE.findall(reason):
        wanted = -(-int(size) // int(multiple)) * int(multiple)
        steps.append(
            f"choose a batch with M a multiple of {multiple}" if name == "M" else f"pad {name} from {size} to {wanted}"
        )
    return ", ".join(dict.fromkeys(steps))


def bad() -> Example:
    return _example(classes=10)


def good() -> Example:
    return _example(classes=16)


def _example(classes: int) -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(32, 32)
            self.fc = nn.Linear(32, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.fc(torch.relu(self.body(x)))  # PA401
            return y

    model: nn.Module = Net()
    args: tuple[Any, ...] = (torch.randn(16, 32),)
    return Example(model, args, policy="fp8-training-hopper")
