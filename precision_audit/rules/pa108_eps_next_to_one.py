"""PA108 eps next to one vanishes

What it does: reports a number such as 1 - 1e-6 that rounds to one in the low format and guards an op singular there:
log(1 - p), log1p(-p), logit, atanh, a division by 1 - p. Also such a logarithm without any guard, where a probability
itself rounded to one.
Why it is a hazard: numbers just below one are 2^-11 apart in fp16 and 2^-8 in bf16. The clamp does nothing, a saturated
probability gives log(0), and its gradient is NaN.
What to do: compute with logits (`logsigmoid`, `binary_cross_entropy_with_logits`), or keep the sigmoid to the logarithm
in fp32.
References: IEEE 754; `torch.nn.functional.logsigmoid`.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import base
from precision_audit.rules.near_one import next_to_one
from precision_audit.rules.vanish import LOGS, Site, Vanish
from precision_audit.rules.vanished import severity_of

_REMEDY = "logsigmoid of the logit or its negative, or the sigmoid to the logarithm in high precision"


def check(context: Context) -> Iterator[Finding]:
    vanish = Vanish(context)
    told = {site.singular.key for site in vanish.sites()}  # the eps that vanishes there is PA109's
    for site in next_to_one(vanish):
        told.add(site.singular.key)
        yield _guarded(vanish, site)
    for op in context.computed():
        if base(op) in LOGS | {"log1p"} and op.key not in told and vanish.reach.free(op):
            yield from _unguarded(vanish, op)


def _guarded(vanish: Vanish, site: Site) -> Finding:
    low, values = vanish.context.low.name, (*site.singular.values, *(v for op in site.between for v in op.values))
    lost = max(vanish.reach.lost(value) for value in values)
    seen = vanish.context.ranges.get(site.guarded)
    reached = None if seen is None else seen.highest >= 1.0 - (vanish.context.low.epsilon or 0.0) / 4
    return found(
        __name__,
        severity_of(vanish.shielded(site.op), lost, reached),
        site.op,
        f"{base(site.op)}: {site.number:.9g} → one in {low}, so it no longer guards {base(site.singular)}",
        Evidence(
            "OBSERVED" if lost else "PROVED",
            f"1 - {1.0 - site.number:.3g} rounds to one in {low}; {lost} elements lost on the example",
            (("number", site.number), ("lost", float(lost))),
        ),
        remedy=_REMEDY,
        pins=vanish.pins_of(site),
    )


def _unguarded(vanish: Vanish, op: Op) -> Iterator[Finding]:
    """A logarithm that reads one minus something, and loses elements that are finite in the captured model."""
    value = vanish.context.operand(op, "other") or vanish.context.operand(op, "self")
    makers = vanish.upstream(value)
    lost = vanish.lost_first(op)
    if not lost or vanish.underflowed(value) or not any(base(each) in ("rsub", "sub", "neg") for each in makers):
        return
    yield found(
        __name__,
        "note" if vanish.shielded(op) else "error",
        op,
        f"{base(op)}: what it reads is one minus a number that → one in {vanish.context.low.name}",
        Evidence("OBSERVED", f"{lost} elements lost on the example", (("lost", float(lost)),)),
        remedy=_REMEDY,
        pins=vanish.pins(makers, (op,)),
    )


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p = torch.sigmoid(x).clamp(1e-6, 1 - 1e-6)  # PA108
            y: torch.Tensor = torch.log(1 - p)
            return y

    return Example(Model(), (torch.tensor([12.0, 0.0]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p = torch.sigmoid(x).clamp(0.01, 0.99)
            y: torch.Tensor = torch.log(1 - p)
            return y

    return Example(Model(), (torch.tensor([12.0, 0.0]),), policy="fp16-inference")
