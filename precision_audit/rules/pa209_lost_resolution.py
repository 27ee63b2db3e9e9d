"""PA209 constants that lose their resolution

What it does: reports buffers, parameters and constants whose rounding is no small matter: schedules that round to one
and from which one is subtracted, tables whose entries become equal. Whole constants of many digits that the low format
changes (299792458) are a note.
Why it is a hazard: below one bf16 has steps of 2^-8 and fp16 of 2^-11. A product of alphas that begins with 0.9999 is
one, and one minus it is zero, where a division follows. `model.half()` casts every buffer without a word.
What to do: keep the buffer and the arithmetic on it in fp32, or store one minus it.
References: Denoising Diffusion Probabilistic Models (arXiv 2006.11239), the noise schedule.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.causes import Causes
from precision_audit.rules.families import DIVISIONS, LOGARITHMS
from precision_audit.rules.leaps import at_stake, base, evidence, leaps, severity, told
from precision_audit.rules.upstream import MOVES, Upstream

_DIGITS = 5  # of a whole constant from which on somebody means each of them


def check(context: Context) -> Iterator[Finding]:
    known: set[str] = set()
    for leap in leaps(context, "PA209"):
        known.update(leap.pins)
        yield found(
            __name__,
            severity(leap),
            leap.op,
            f"{base(leap.op.key)} of {leap.notes['stored']}, stored in {context.low.name} → {told(leap, context)}",
            evidence(leap, context),
            remedy=f"keep {leap.notes['stored']} and the arithmetic on it in fp32",
            pins=leap.pins,
        )
    if at_stake(context):
        upstream = Upstream(context)
        yield from _one_minus(context, upstream, known)
        yield from _whole(context, upstream)


def _one_minus(context: Context, upstream: Upstream, known: set[str]) -> Iterator[Finding]:
    """1 - x of a stored x that rounds to one, which something divides by or takes the logarithm of."""
    causes = Causes(context, upstream)
    for op in context.computed():
        if op.op != "rsub" or dict(op.attributes).get("other") not in (1, 1.0) or op.key in known or op.fixed:
            continue
        singular = _singular(context, upstream, op)
        if singular is None or any(value in upstream.given for value in upstream.floats(op)):
            continue
        region = upstream.region(upstream.floats(op))
        held = [context.ranges[key] for key in region.state if key in context.ranges]
        stored = [each for each in held if 0.5 < each.highest < 1 and causes.low(each.highest) == 1]
        kinds = {upstream.ops[key].kind for key in region.state}
        if not stored or region.products or "input" in kinds:
            continue
        yield found(
            __name__,
            "warning",
            op,
            f"{stored[0].value} reaches {stored[0].highest:.6g} → one in {context.low.name}, and {base(singular.key)} "
            "takes one minus it",
            Evidence("PROVED", "a stored value and the format's step", (("highest", stored[0].highest),)),
            remedy=f"keep {stored[0].value} and the arithmetic on it in fp32",
            pins=(*region.nearest(), op.key, singular.key),
        )


def _singular(context: Context, upstream: Upstream, op: Op) -> Op | None:
    """The division by a value, or the logarithm or inverse root of it, through cheap ops."""
    queue = list(op.values)
    for value in queue[:64]:
        for reader in context.readers.get(value, ()):
            divides = reader.op in DIVISIONS and (
                reader.op == "reciprocal" or context.operand(reader, "other") == value
            )
            if divides or reader.op in LOGARITHMS | {"rsqrt"}:
                return reader
            if reader.kind in ("view_layout", "cast") or reader.op in ("sqrt", "pow", "neg"):
                queue.extend(reader.values)
    return None


def _whole(context: Context, upstream: Upstream) -> Iterator[Finding]:
    """Whole constants of many digits, written into an op or stored, that the low format changes."""
    causes = Causes(context, upstream)
    for op in context.computed():
        numbers = [n for name, n in op.attributes if name in ("other", "value", "fill_value", "self")]
        read = [context.ranges[o.value] for o in op.operands if o.value in context.ranges]
        numbers += [each.amax for each in read if each.whole and each.count == 1 and each.value in upstream.constants]
        for number in numbers:
            if (
                op.fixed
                or op.kind in MOVES
                or op.kind == "scatter_write"
                or not isinstance(number, int | float)
                or not _meant(number)
            ):
                continue
            rounded = causes.low(float(number))
            if rounded == number or abs(number) > context.low.max_finite:
                continue
            yield found(
                __name__,
                "note",
                op,
                f"{number:.0f} → {rounded:.0f} in {context.low.name}",
                Evidence("PROVED", "a constant and the format's step", (("number", float(number)),)),
                remedy="keep the op in fp32 if its last digits matter",
            )
            break


def _meant(number: float) -> bool:
    whole = abs(number) < 1e15 and float(number) == int(number)
    return whole and len(str(abs(int(number))).rstrip("0")) >= _DIGITS


def bad() -> Example:
    import torch
    from torch import nn

    class Denoise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = nn.Buffer(torch.cumprod(1 - torch.linspace(1e-4, 2e-2, 1000), 0))

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return x / (1 - self.kept[t])[:, None]  # PA209

    return Example(Denoise(), (torch.randn(3, 8), torch.tensor([0, 3, 500])))


def good() -> Example:
    import torch
    from torch import nn

    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = nn.Buffer(torch.cumprod(1 - torch.linspace(1e-4, 2e-2, 1000), 0))

        def forward(self, x: torch.Tensor, noise: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            kept = self.kept[t][:, None]
            return kept.sqrt() * x + (1 - kept).sqrt() * noise  # small beside x where it is wrong

    return Example(Noise(), (torch.randn(3, 8), torch.randn(3, 8), torch.tensor([0, 400, 900])))
