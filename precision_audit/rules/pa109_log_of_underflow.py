"""PA109 logarithm of an underflowed number

What it does: reports a logarithm that reads a number, or number plus eps, that rounds to zero in the low format. A note
where only a sigmoid or an exponential reads it, which gives zero of either.
Why it is a hazard: fp16 holds nothing below 6e-8. log(p + 1e-8) of a zero probability is -18 in fp32 and -inf in fp16;
a small softmax probability becomes zero before its logarithm is taken.
What to do: log_softmax or logsigmoid of the logits, an eps the format holds, or the chain to the logarithm in fp32.
References: `torch.nn.functional.log_softmax`; box encoders that take log(ratio + eps).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import base
from precision_audit.rules.saturation import Behind, saturates
from precision_audit.rules.vanish import LOGS, Site, Vanish
from precision_audit.rules.vanished import severity_of

_LOGS = {"log": 1.0, "log2": 1 / math.log(2.0), "log10": 1 / math.log(10.0)}
_REMEDY = "log_softmax or logsigmoid of the logits, an eps of at least 1e-6, or the chain to log in high precision"


def check(context: Context) -> Iterator[Finding]:
    vanish = Vanish(context)
    told: set[str] = set()
    for site in vanish.sites():
        if base(site.singular) in LOGS and site.singular.key not in told:
            told.add(site.singular.key)
            yield _guarded(vanish, site)
    for op in context.computed():
        if base(op) in LOGS and op.key not in told and vanish.reach.free(op):
            yield from _unguarded(vanish, op)


def _guarded(vanish: Vanish, site: Site) -> Finding:
    low = vanish.context.low.name
    harmless = _ends(vanish, site.singular)
    lost = max(vanish.reach.lost(value) for value in site.singular.values)
    return found(
        __name__,
        "note" if harmless else severity_of(vanish.shielded(site.op), lost, vanish.can_be_zero(site.guarded)),
        site.singular,
        f"{base(site.singular)}: the eps of {site.number:.3g} it reads → zero in {low}, the logarithm of zero -inf",
        Evidence(
            "OBSERVED" if lost else "PROVED",
            f"{site.number:.3g} at {site.op.key} is below half the smallest number of {low}, {vanish.zero_at:.3g}",
            (("eps", site.number), ("limit", vanish.zero_at), ("lost", float(lost))),
        ),
        remedy=_REMEDY,
        pins=() if harmless else vanish.pins_of(site),
    )


def _unguarded(vanish: Vanish, op: Op) -> Iterator[Finding]:
    context = vanish.context
    value = context.operand(op, "other") or context.operand(op, "self")
    lost, seen = vanish.lost_first(op), context.ranges.get(value)
    small = seen is not None and 0 < seen.smallest <= vanish.zero_at
    if not (lost and vanish.underflowed(value)) and not (small and context.facts.batches > 1):
        return
    smallest = seen.smallest if seen else 0.0
    harmless = _ends(vanish, op)
    yield found(
        __name__,
        "note" if harmless else severity_of(vanish.shielded(op), lost, True),
        op,
        f"{base(op)}: reads numbers down to {smallest:.3g} → zero in {context.policy.low}, their logarithm -inf",
        Evidence(
            "OBSERVED",
            f"smallest {smallest:.3g}, zero at {vanish.zero_at:.3g}; {lost} elements lost on the example",
            (("smallest", smallest), ("limit", vanish.zero_at), ("lost", float(lost))),
        ),
        remedy=_REMEDY,
        pins=() if harmless else vanish.pins(vanish.upstream(value), (op,)),
    )


def _ends(vanish: Vanish, op: Op) -> bool:
    """Whether all that reads the logarithm makes of minus infinity what it makes of one of a number that vanishes: the
    exponential and the sigmoid of either are zero."""
    scale = _LOGS.get(base(op))
    if scale is None:
        return False
    least = Behind(None, -math.log(vanish.zero_at) * scale)
    return saturates(vanish.context, dict.fromkeys(op.values, least), vanish.reach.far)


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.log(torch.relu(x) + 1e-8)  # PA109
            return y

    return Example(Model(), (torch.tensor([1.0, -1.0]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.log(torch.relu(x) + 1e-4)
            return y

    return Example(Model(), (torch.tensor([1.0, -1.0]),), policy="fp16-inference")
