"""PA201 whole numbers beyond what the format counts

What it does: reports positions, timesteps and ids that are carried in a float and lie beyond the largest number up to
which the low format holds every integer, where something hangs on the single steps: an angle, an index, a difference.
Why it is a hazard: bf16 counts to 256 and fp16 to 2048. Beyond, neighbours become one number: position 1001 is 1000,
its angle is off by a radian, token 2049 reads the row of 2048.
What to do: make positions and angles in fp32 and cast the sine and cosine, or the bias; keep ids in integers.
References: RoFormer (arXiv 2104.09864); IEEE 754 binary16.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.causes import Causes
from precision_audit.rules.families import ANGLES
from precision_audit.rules.leaps import at_stake, evidence, leaps, severity, told
from precision_audit.rules.upstream import Upstream


def check(context: Context) -> Iterator[Finding]:
    low = context.low
    for leap in leaps(context, "PA201"):
        cast = leap.notes.get("cast", "")
        what = f"numbers that become an index at `{cast}`" if cast else "whole numbers"
        yield found(
            __name__,
            severity(leap),
            leap.op,
            f"{what} beyond {low.consecutive} → {low.name} rounds them to neighbours; {told(leap, context)}",
            evidence(leap, context, f"{low.name} holds every integer up to {low.consecutive}"),
            remedy="carry ids as integers" if cast else "keep positions and what is computed of them in fp32",
            pins=leap.pins,
        )
    if at_stake(context):
        yield from _carried(context)
    if at_stake(context) and not context.facts.beside:
        yield from _unseen(context)


def _carried(context: Context) -> Iterator[Finding]:
    """Ids in a float input or buffer that go straight into integers: only a cast of the whole would change them."""
    upstream = Upstream(context)
    causes = Causes(context, upstream)
    known = {key for leap in leaps(context, "PA201") for key in (leap.op.key, *leap.pins)}
    for op in context.computed():
        where = causes.carried(op) if op.key not in known else None
        if where is not None and where.key not in known:
            known.add(where.key)
            held = context.ranges[op.operands[0].value]
            kind = context.maker[upstream.origin(held.value)].kind
            yield found(
                __name__,
                "warning",
                where,
                f"numbers up to {held.amax:.0f} in a float {kind} become an index → cast to {context.low.name}, those "
                f"beyond {context.low.consecutive} are their neighbours",
                Evidence(held.basis, f"range of the {kind}", (("amax", held.amax), ("batch", float(held.batch)))),
                remedy="carry ids as integers",
                pins=(op.key,),
            )


def _unseen(context: Context) -> Iterator[Finding]:
    """Without an example: angles of positions that are known from sizes alone."""
    upstream = Upstream(context)
    causes = Causes(context, upstream)
    named: set[str] = set()
    for op in context.computed():
        if op.op not in ANGLES or op.fixed or not upstream.floats(op):
            continue
        _, maker, pins, _ = cause = causes.of_angle(op)
        held = [context.ranges[key] for key in pins if key in context.ranges and causes.whole(context.by_key()[key])]
        if cause[0] != "PA201" or not held or maker.key in named:
            continue
        named.add(maker.key)
        most = max(each.amax for each in held)
        yield found(
            __name__,
            "warning",
            maker,
            f"angles of numbers up to {most:.0f} → {context.low.name} rounds those beyond {context.low.consecutive}",
            Evidence("PROVED", "the range depends on sizes alone", (("amax", most),)),
            remedy="keep positions and what is computed of them in fp32",
            pins=pins,
        )


def bad() -> Example:
    import torch
    from torch import nn

    class Rotary(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            frequencies = 10000.0 ** (-torch.arange(0, 16, 2) / 16)
            positions = torch.arange(x.shape[1], dtype=x.dtype)
            angles = positions[:, None] * frequencies  # PA201
            return x * torch.cat((angles.cos(), angles.sin()), -1)

    return Example(Rotary(), (torch.randn(1, 1200, 16),))


def good() -> Example:
    import torch
    from torch import nn

    class Weighted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
            return x.cumsum(1) / count[:, None]  # a mean so far: a count off by 2^-9 of itself is as good

    return Example(Weighted(), (1 + torch.rand(1, 1200, 4),))
