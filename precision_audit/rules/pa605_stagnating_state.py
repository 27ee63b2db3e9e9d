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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from precision_audit.formats import Format
from precision_audit.records import Accumulated, Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.stored import stored

_WHOLE = 1 - 1e-6
_OFF = 0.1  # of the value: a running average that stops there is wrong, whatever reads it


def check(context: Context) -> Iterator[Finding]:
    where = stored(context, "buffer")
    if where is None:
        return
    ops = context.by_key()
    alike: dict[str, list[Accumulated]] = {}
    for each in context.facts.accumulated:
        said = _counter(each, where.format) or _total(each, where.format) or _average(each, where.format)
        if said:
            alike.setdefault(said, []).append(each)
    for said, members in alike.items():
        first = members[0]
        made = found(
            __name__,
            "error" if where.own and first.constant else "warning",
            ops.get(first.writer),
            f"{_names(members)} {said}",
            _evidence(first),
            remedy=f"keep {first.value if len(members) == 1 else 'them'} in fp32",
            of=first.value,
        )
        yield replace(made, resolved=not where.own)


def _counter(each: Accumulated, format: Format) -> str:
    if each.kept < _WHOLE or not each.constant:
        return ""
    stop = _stops_at(abs(each.constant), format)
    steps = math.ceil(stop / abs(each.constant))
    return f"grows by {each.constant:g} per step → stops at {stop:g} in {format.name}, after {steps} steps"


def _total(each: Accumulated, format: Format) -> str:
    if each.kept < _WHOLE:
        return ""
    stop = _stops_at(each.step, format)
    return f"grows by up to {each.step:.2g} per step → stops near {stop:.2g} in {format.name}"


def _average(each: Accumulated, format: Format) -> str:
    assert format.mantissa_bits is not None
    off = 2.0 ** -(format.mantissa_bits + 1) / (1 - each.kept)
    if off <= _OFF:
        return ""
    return f"keeps {each.kept:.4g} of itself per step → in {format.name} it stops within {off:.0%} of what it should be"


def _names(members: Sequence[Accumulated]) -> str:
    more = f" (and {len(members) - 1} like it)" if len(members) > 1 else ""
    return f"{members[0].value}{more}"


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
