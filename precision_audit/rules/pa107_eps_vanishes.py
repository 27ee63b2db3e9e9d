"""PA107 eps vanishes

What it does: reports an eps, added or used as a floor, that rounds to zero in the low format and guards a division, an
inverse root or a negative power. An error where elements were lost with it, a warning where what it guards was seen at
zero or so small that it becomes zero, else a note. Also cosine_similarity, whose eps is inside.
Why it is a hazard: fp16 holds nothing below 6e-8; half of that, 3e-8, is already zero. A zero row, a dead unit, padding
is then divided by zero: NaN where there was a zero.
What to do: an eps the format holds (1e-6), or keep the chain from the squares to the division in fp32.
References: `torch.nn.functional.normalize` has eps=1e-12; BERT's layer norm the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import base
from precision_audit.rules.vanish import GUARDED, LOGS, Site, Vanish
from precision_audit.rules.vanished import severity_of


def check(context: Context) -> Iterator[Finding]:
    vanish = Vanish(context)
    by_op: dict[str, list[Site]] = {}
    for site in vanish.sites():
        if base(site.singular) not in LOGS:
            by_op.setdefault(site.op.key, []).append(site)
    yield from (_finding(vanish, sites) for sites in by_op.values())
    for op in context.computed():
        lost = vanish.lost_first(op) if base(op) in GUARDED and vanish.zero_vector(op) else 0
        if lost:
            text = f"{lost} elements lost on the example; its eps and products of squares are below the format's reach"
            yield found(
                __name__,
                "note" if vanish.shielded(op) else "error",
                op,
                f"{base(op)}: its own eps of 1e-8 → zero in {context.policy.low}, 0/0 where a vector is zero",
                Evidence("OBSERVED", text, (("lost", float(lost)),)),
                remedy=_REMEDY,
                pins=(op.key,),
            )


_REMEDY = "an eps of at least 1e-6, or the chain up to the division in high precision"


def _finding(vanish: Vanish, sites: list[Site]) -> Finding:
    site, low = sites[0], vanish.context.low
    lost = max(vanish.reach.lost(value) for each in sites for value in each.singular.values)
    severity = severity_of(vanish.shielded(site.op), lost, vanish.can_be_zero(site.guarded))
    seen = vanish.context.ranges.get(site.guarded)
    what = f"; {site.guarded} is as small as {0.0 if seen.zeros else seen.smallest:.3g}" if seen else ""
    return found(
        __name__,
        severity,
        site.op,
        f"{base(site.op)}: eps {site.number:.3g} → zero in {low.name}, so {base(site.singular)} can divide by zero",
        Evidence(
            "OBSERVED" if lost else "PROVED",
            f"{site.number:.3g} is below half the smallest number of {low.name}, {vanish.zero_at:.3g}{what}",
            (("eps", site.number), ("limit", vanish.zero_at), ("lost", float(lost))),
        ),
        remedy=_REMEDY,
        pins=vanish.pins_of(*sites),
    )


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x / (x.norm(dim=-1, keepdim=True) + 1e-12)  # PA107
            return y

    return Example(Model(), (torch.tensor([[3.0, 4.0], [0.0, 0.0]]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x / (x.norm(dim=-1, keepdim=True) + 1e-2)
            return y

    return Example(Model(), (torch.tensor([[3.0, 4.0], [0.0, 0.0]]),), policy="fp16-inference")
