"""From an `Origin` to a finding: the words that the overflow rules have in common.

Takes what `reach` found and the words of one rule; gives the finding with its numbers, severity and pins. Severity is
error where something finite is lost or torch refuses the number, warning where the infinity that comes of it says what
the number said (a mask before a softmax) or made no difference on the example (before a tanh), and note where the user
himself keeps the arithmetic in the high format, or an exponential ends as a sigmoid's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from precision_audit.records import Evidence, Finding, Severity
from precision_audit.rules import Context, found
from precision_audit.rules.limits import overflows_at, share_beyond
from precision_audit.rules.reach import REFUSES, Origin, base, of_rule

_EXPONENTIAL = "PA103"  # one over one plus infinity is how a sigmoid is written out


def overflowing(
    module_name: str, code: str, context: Context, says: Callable[[Origin], str], remedy: str
) -> Iterator[Finding]:
    """The findings of one overflow rule. `says` gives the message up to what will happen."""
    for origin in of_rule(context, code):
        made = found(
            module_name,
            severity(origin),
            origin.op,
            f"{says(origin)} → {outcome(origin, context)}",
            evidence(origin, context),
            remedy=remedy,
            of=origin.value if origin.value not in origin.op.values else "",
            pins=origin.pins,
        )
        # torch.autocast raises there; a conversion under its policy writes the format's own limit instead
        yield replace(made, resolved=bool(context.policy.autocast) and refused(origin))


def severity(origin: Origin) -> Severity:
    if origin.shielded or (origin.harmless and origin.rule == _EXPONENTIAL):
        return "note"
    if refused(origin) or not (origin.absorbed or origin.harmless):
        return "error"
    return "warning"


def refused(origin: Origin) -> bool:
    """Whether torch raises rather than writes infinity."""
    if origin.literal is None or base(origin.op) not in REFUSES:
        return False
    return origin.value in origin.op.values or base(origin.op) == "masked_fill"  # fill_ takes a tensor as it is


def outcome(origin: Origin, context: Context) -> str:
    low = context.policy.low
    if origin.shielded:
        return f"stays {context.policy.high} by your own cast; in {low} it would be infinite"
    if refused(origin):
        return f"{base(origin.op)} raises in {low}: the value cannot be converted without overflow"
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
