"""Elements that are infinite in the low model and harm nothing: not counted as lost.

Takes a context; gives its facts, the low model's lost elements left out where an infinity ends in an op that makes the
same of it, or is a mask that hangs on no input. Without that whatever such an infinity passes would count as lost by
the overflow, and a hazard of another kind on the same path would not be looked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from precision_audit.records import Beside, Facts
from precision_audit.rules import Context
from precision_audit.rules.reach import all_origins


def excused(context: Context) -> Facts:
    """The facts with `lost` at zero for what harms nothing."""
    facts = context.facts
    known = _values(context)
    if not known:
        return facts

    def without(records: Iterable[Beside]) -> tuple[Beside, ...]:
        return tuple(replace(each, lost=0, fresh_lost=0) if each.value in known else each for each in records)

    return replace(facts, beside=without(facts.beside), cast=without(facts.cast))


def _values(context: Context) -> frozenset[str]:
    """The results of ops that overflow without harm, and what inherits their infinities."""
    found: set[str] = set()
    starts = {origin.op.key for origin in all_origins(context) if origin.settled or origin.saturated}
    for op in context.graph.ops if starts else ():
        inherits = any(operand.value in found for operand in op.operands)
        if op.key in starts or inherits:
            lost = (value for value in op.values if value in context.beside and context.beside[value].lost)
            found.update(op.values if op.key in starts else lost)
    return frozenset(found)
