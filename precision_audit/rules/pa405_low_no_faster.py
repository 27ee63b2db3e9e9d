"""PA405 the low format is predicted no faster on the device

What it does: adds up what the ops cost on the device in the high format, and what they cost where those that the policy
pins low run low and those that are free run in the cheaper format; casts come on top. Reports it where nothing is
gained. A note: the result is right, and the time is a prediction.
Why it is a hazard: accuracy is given up for nothing. A processor without units for a format converts every operand, or
has reference kernels alone, and takes several times as long.
What to do: keep the high format there, choose a low format that the device has units for, or name the device that the
model will run on with `--device`. Memory may still be worth it.
References: the devices' datasheets (`precision-audit list devices`); Williams, Waterman, Patterson, Roofline, 2009.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from precision_audit.cost import roofline
from precision_audit.plan.reading import alike
from precision_audit.records import Evidence, Finding, Op
from precision_audit.report import phrases
from precision_audit.rules import Context, Example, found


class _Seconds(NamedTuple):
    high: float
    low: float


def check(context: Context) -> Iterator[Finding]:
    low, high = context.policy.low, context.policy.high
    if low == high or context.policy.autocast:
        return
    spent = _spent(context)
    pinned = {key: None for key in spent if context.decisions[key].chosen == low}
    pays = {key: spent[key].low if key in pinned else min(spent[key]) for key in spent}
    whole_high, whole = sum(each.high for each in spent.values()), sum(pays.values())
    if not pinned or whole < whole_high:
        return
    ops = context.by_key()
    dearest = max(pinned, key=lambda key: spent[key].low - spent[key].high)
    ratio = whole / whole_high
    yield found(
        __name__,
        "note",
        ops[dearest],
        f"predicted no faster in {low} on {context.hardware.name}: {ratio:.2g} times as long as all in {high}, "
        "casts not counted",
        Evidence(
            "ASSUMED",
            f"predicted from the device's {'measured rates' if context.hardware.rates else 'figures'}: "
            f"{phrases.duration(whole)} against {phrases.duration(whole_high)}; the dearest op {dearest} "
            f"{phrases.duration(spent[dearest].low)} against {phrases.duration(spent[dearest].high)}",
            (("seconds", whole), ("seconds_high", whole_high)),
        ),
        remedy=f"keep {high} there, or name the device that it will run on with --device",
    )


def _spent(context: Context) -> dict[str, _Seconds]:
    """Both prices of every op whose format can be chosen, by key; ops that are alike are priced once."""
    high, low = context.policy.high, context.policy.low
    compute = roofline.compute_format(context.policy)
    known: dict[int, _Seconds] = {}
    spent = {}
    for op, same in zip(context.graph.ops, alike(context.graph), strict=True):
        if op.key not in context.decisions or not _chosen(op, high):
            continue
        if same not in known:
            inputs = [context.tensors[each.value] for each in op.operands]
            where = (context.hardware, context.graph.mode)
            known[same] = _Seconds(
                roofline.op_seconds(op, inputs, high, *where, compute=compute),
                roofline.op_seconds(op, inputs, low, *where),
            )
        spent[op.key] = known[same]
    return spent


def _chosen(op: Op, high: str) -> bool:
    return not op.fixed and any(tensor.format == high for tensor in op.outputs)


# A V100 has tensor cores for fp16 and converts bf16 to fp32.
_WITHOUT_UNITS = "name: without-units\nextends: bf16-inference\ndevice: v100\n"


def bad() -> Example:
    return _example(_WITHOUT_UNITS)


def good() -> Example:
    return _example(_WITHOUT_UNITS.replace("v100", "a100"))


def _example(policy: str) -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(512, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.fc(x)  # PA405
            return y

    return Example(Net(), (torch.ones(64, 512),), policy)
