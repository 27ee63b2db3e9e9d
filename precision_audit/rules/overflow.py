"""From an `Origin` to a finding: the words that the overflow rules have in common.

Takes what `reach` found and the words of one rule; gives the finding with its numbers, severity and pins. Severity is
error where something finite is lost or torch refuses the number, warning where the infinity that comes of it says what
the number said (a mask before a softmax) or made no difference on the example (1 / (1 + x)), and note where the user
himself keeps the arithmetic in the high format, an exponential ends as a sigmoid's, or the infinity can do no harm: it
ends in a tanh or a clamp, or stands in a mask that is the same for all inputs. For a mask nothing is kept high but an
op that refuses the number; an op whose own result leaves the range is, whatever reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from precision_audit.capture.origins import TAKEN_AS_WRITTEN
from precision_audit.plain import REFUSES
from precision_audit.records import Evidence, Finding, Severity
from precision_audit.rules import Context, found
from precision_audit.rules.families import base
from precision_audit.rules.limits import overflows_at, share_beyond
from precision_audit.rules.reach import Origin, of_rule
from precision_audit.rules.trapped import trapped

_EXPONENTIAL = "PA103"  # one over one plus infinity is how a sigmoid is written out


def overflowing(
    module_name: str, code: str, context: Context, says: Callable[[Origin], str], remedy: str
) -> Iterator[Finding]:
    """The findings of one overflow rule. `says` gives the message up to what will happen."""
    for origin in of_rule(context, code):
        made = found(
            module_name,
            severity(origin, context),
            origin.op,
            f"{says(origin)} → {outcome(origin, context)}",
            evidence(origin, context),
            remedy=remedy,
            of=origin.value if origin.value not in origin.op.values else "",
            pins=pins(origin, context),
        )
        # torch.autocast raises there; a conversion under its policy writes the format's own limit instead
        yield replace(made, resolved=bool(context.policy.autocast) and refused(origin, context))


def severity(origin: Origin, context: Context) -> Severity:
    if origin.shielded or (origin.harmless and origin.rule == _EXPONENTIAL):
        return "note"
    if refused(origin, context):
        return "error"
    if origin.settled or origin.saturated:
        return "note"
    return "warning" if origin.absorbed or origin.harmless else "error"


def pins(origin: Origin, context: Context) -> tuple[str, ...]:
    """What must run high: an op whose own result leaves the range, and state that does, whatever reads it. Infinities
    of a mask may be, but torch cannot write a number that does not fit."""
    if refused(origin, context) or not origin.settled:
        return origin.pins
    return (origin.op.key,) if refuses(origin) else ()


def refuses(origin: Origin) -> bool:
    """Whether torch raises rather than writes infinity, if the op runs low."""
    if origin.literal is None or base(origin.op) not in REFUSES:
        return False
    return origin.value in origin.op.values or base(origin.op) == "masked_fill"  # fill_ takes a tensor as it is


def refused(origin: Origin, context: Context) -> bool:
    """Whether it does so when the user casts the model: what his code makes in fp32, whatever the model is in, stays
    so."""
    if not refuses(origin):
        return False
    if context.policy.autocast:  # which casts what an op reads, where that hangs on the model's inputs
        return not context.moving.isdisjoint(operand.value for operand in origin.op.operands)
    unread = any(note.startswith(TAKEN_AS_WRITTEN) for note in context.graph.notes)  # then nothing is known of casts
    return unread or any(op.key == origin.op.key for op, _ in trapped(context, "number"))


def outcome(origin: Origin, context: Context) -> str:
    low = context.policy.low
    if origin.shielded:
        return f"stays {context.policy.high} by your own cast; in {low} it would be infinite"
    if refused(origin, context):
        return f"{base(origin.op)} raises in {low}: the value cannot be converted without overflow"
    if origin.saturated:
        return f"infinite in {low}, of which all that reads it makes the same as of the number"
    if origin.settled:
        return f"-inf in {low}, at the same places for all inputs, and no row is masked as a whole"
    if origin.absorbed:
        return f"-inf in {low}; a row that is masked as a whole becomes NaN"
    if origin.harmless:
        return f"infinite in {low}; on the example what reads it makes the same of it"
    return f"infinite in {low}"


def evidence(origin: Origin, context: Context) -> Evidence:
    limit = context.low.max_finite
    seen = origin.seen
    if seen is None or seen.amax < overflows_at(context.low):
        number = abs(origin.literal or 0.0)
        return Evidence("PROVED", f"{number:.6g} is written in the code, limit {limit:.6g}", (("limit", limit),))
    share = share_beyond(seen, limit)
    where = "from constants alone" if seen.basis == "PROVED" else f"batch {seen.batch}, {share:.2g} of the elements"
    return Evidence(
        seen.basis,
        f"magnitude {seen.amax:.6g} at {origin.value}, limit {limit:.6g}; {where}",
        (("amax", seen.amax), ("limit", limit), ("batch", float(seen.batch)), ("share", share)),
    )


def amax(origin: Origin) -> float:
    return origin.seen.amax if origin.seen is not None else abs(origin.literal or 0.0)


def extreme(origin: Origin) -> float:
    """The number furthest from zero, with its sign."""
    if origin.seen is None or origin.literal is not None:
        return origin.literal or 0.0
    return origin.seen.lowest if -origin.seen.lowest > origin.seen.highest else origin.seen.highest
