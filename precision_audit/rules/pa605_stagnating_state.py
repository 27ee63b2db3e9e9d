"""PA605 counter, total or running statistic that stands still

What it does: looks at float buffers that the model writes to: how much of the old value goes into the new one, and by
how much it changes, against the spacing of the format that buffers have or would have after a cast of the module.
Why it is a hazard: 256 + 1 is 256 in bf16. A counter stops there while the code that divides by the number of steps
goes on; a total stops growing when it is some hundred times its increment; a running average with momentum m stops
within half a spacing / (1 - m) of its value, which for m = 0.999 in bf16 is more than the value itself.
What to do: keep such buffers in fp32, as every conversion here does; in a model cast as a whole, cast them back.
References: pytorch/xla PR 2425; pytorch/executorch PR 20090.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from precision_audit.formats import Format
from precision_audit.records import Accumulated, Evidence, Finding, Severity
from precision_audit.rules import Context, Example, found
from precision_audit.rules.stored import stored

_WHOLE = 1 - 1e-6
_OFF = 0.1  # of the value: a running average that stops there is wrong, whatever reads it


def check(context: Context) -> Iterator[Finding]:
    where = stored(context, "buffer")
    if where is None:
        return
    limit = dict(context.policy.tolerances).get("relative_l2", 0.0)
    ops = context.by_key()
    for each in context.facts.accumulated:
        said = _counter(each, where.format) or _total(each, where.format) or _average(each, where.format, limit)
        if said is None:
            continue
        severity, message = said
        made = found(
            __name__,
            "error" if where.own and severity == "warning" and each.constant else severity,
            ops.get(each.writer),
            message,
            _evidence(each),
            remedy=f"keep {each.value} in fp32",
            of=each.value,
        )
        yield replace(made, resolved=not where.own)


def _counter(each: Accumulated, format: Format) -> tuple[Severity, str] | None:
    if each.kept < _WHOLE or not each.constant:
        return None
    stop = _stops_at(abs(each.constant), format)
    steps = math.ceil(stop / abs(each.constant))
    return (
        "warning",
        f"{each.value} grows by {each.constant:g} per step → stops at {stop:g} in {format.name}, {steps} steps",
    )


def _total(each: Accumulated, format: Format) -> tuple[Severity, str] | None:
    if each.kept < _WHOLE:
        return None
    stop = _stops_at(each.step, format)
    return "warning", f"{each.value} grows by {each.step:.3g} per step → stops near {stop:.3g} in {format.name}"


def _average(each: Accumulated, format: Format, limit: float) -> tuple[Severity, str] | None:
    assert format.mantissa_bits is not None
    off = 2.0 ** -(format.mantissa_bits + 1) / (1 - each.kept)
    if off <= limit:
        return None
    severity: Severity = "warning" if off > _OFF else "note"
    momentum = f"{each.value} keeps {each.kept:.4g} of itself per step"
    return severity, f"{momentum} → in {format.name} it stops within {off:.0%} of what it should be"


def _stops_at(step: float, format: Format) -> float:
    """The power of two from which on half the spacing is the step or more; a tie goes to the even number, which a power
    of two is."""
    assert format.mantissa_bits is not None
    return 2.0 ** (math.ceil(math.log2(step)) + format.mantissa_bits + 1)


def _evidence(each: Accumulated) -> Evidence:
    text = f"changed by up to {each.step:.3g} in a step, to {each.size:.3g}; {each.kept:.4g} of the old value is kept"
    return Evidence("OBSERVED", text, (("step", each.step), ("size", each.size), ("kept", each.kept)))


def bad() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1  # PA605
            return self.fc(x)

    return Example(Net(), (torch.randn(2, 8),), policy="bf16-training")


def good() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            return self.fc(x)

    return Example(Net(), (torch.randn(2, 8),), policy="bf16-training")
