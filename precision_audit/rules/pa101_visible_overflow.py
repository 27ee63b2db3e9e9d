"""PA101 visible overflow

What it does: reports an op whose result leaves the low format's range although what it reads is within: an activation,
a residual stream, a square, attention scores before their scale, a norm, a variance. Only the first such op is named,
not those that inherit the value or turn it into NaN; also an input of the model that is itself out of range. A note
where all that reads the infinity makes the same of it as of the number: tanh, sigmoid, a clamp, a comparison.
Why it is a hazard: beyond 65504 a number in fp16 is infinite. Infinity minus infinity and zero times infinity are NaN,
and the inverse of infinity is a silent zero. A later op that scales the value down comes too late.
What to do: keep the op and what reads its result in fp32 (the converter does), or scale before: the query before the
product, the vector before its squares. bf16 has the range of fp32.
References: IEEE 754 binary16; T5 and attention scores in half precision, reported many times.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example
from precision_audit.rules.overflow import amax, extreme, overflowing
from precision_audit.rules.reach import Origin, base
from precision_audit.rules.vanish import Vanish


def check(context: Context) -> Iterator[Finding]:
    remedy = "keep the op in high precision up to where the values are back in range, or scale before it"
    told = Vanish(context).guarded()
    return (each for each in overflowing(__name__, "PA101", context, _says, remedy) if each.op not in told)


def _says(origin: Origin) -> str:
    exponent = dict(origin.op.attributes).get("exponent")
    what = "square" if base(origin.op) == "square" or exponent in (2, 2.0) else base(origin.op)
    if origin.value not in origin.op.values:
        return f"{what}: reads {origin.value}, {extreme(origin):.4g}"
    return f"{what}: up to {amax(origin):.4g}"


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x * x / 1000.0  # PA101
            return y

    return Example(Model(), (torch.tensor([300.0, 2.0]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x * (x / 1000.0)
            return y

    return Example(Model(), (torch.tensor([300.0, 2.0]),), policy="fp16-inference")
