"""PA101 visible overflow

What it does: reports an op whose result leaves the low format's range although what it reads is within: an activation,
a residual stream, a square, attention scores before their scale, a norm, a variance. Only the first such op is named,
not those that inherit the value or turn it into NaN; also an input of the model that is itself out of range. A note
where all that reads the infinity makes the same of it as of the number: tanh, sigmoid, a clamp, a comparison. Of a
model that is given in 16 bits, the op that makes infinities.
Why it is a hazard: beyond 65504 a number in fp16 is infinite. Infinity minus infinity and zero times infinity are NaN,
and the inverse of infinity is a silent zero. A later op that scales the value down comes too late.
What to do: keep the op and what reads its result in fp32 (the converter does), or scale before: the query before the
product, the vector before its squares. bf16 has the range of fp32.
References: IEEE 754 binary16; T5 and attention scores in half precision, reported many times.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import base
from precision_audit.rules.overflow import amax, extreme, overflowing
from precision_audit.rules.reach import Origin
from precision_audit.rules.vanish import Vanish


def check(context: Context) -> Iterator[Finding]:
    remedy = "keep the op in high precision up to where the values are back in range, or scale before it"
    told = Vanish(context).guarded()
    yield from (each for each in overflowing(__name__, "PA101", context, _says, remedy) if each.op not in told)
    yield from _as_given(context)


def _as_given(context: Context) -> Iterator[Finding]:
    """Ops that the model is given low, and that make plus infinity of finite numbers: what a plan cannot mend."""
    for op in context.computed():
        for value in op.values:
            seen, form = context.ranges.get(value), context.tensors[value].format
            made = seen is not None and seen.origin == "infinity" and seen.infinite > seen.negative_infinite
            if seen is None or not made or form not in ("fp16", "bf16") or form == context.policy.high:
                continue
            count = seen.infinite - seen.negative_infinite
            yield found(
                __name__,
                "warning",
                op,
                f"{base(op)}: makes {count} infinities of finite numbers in {form}, which the model is given in",
                Evidence(
                    "OBSERVED",
                    f"{count} of {seen.count} elements, first in batch {max(seen.lost_in, 0)}",
                    (("infinite", float(count)), ("count", float(seen.count))),
                ),
                remedy="compute it in fp32 in the model's own code, or audit the model in fp32 and have it converted",
                of=value if value != op.values[0] else "",
            )


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
