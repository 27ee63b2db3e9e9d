"""Infinities that make no difference: taken back, or taken for what the number meant.

Takes what lies beyond the low range and what the low model made of it; says whether the infinity is gone again before
anything else reads it. Judges by the example, so without one nothing is absorbed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from precision_audit.formats import is_float
from precision_audit.records import Op, Range
from precision_audit.rules import Context

if TYPE_CHECKING:
    from precision_audit.rules.reach import Reach

_AS_BEFORE = 1e-2  # relative error up to which a value is what it was


def absorbed(reach: Reach, op: Op, seen: Range | None) -> bool:
    """Only minus infinity comes of it, and it is lost again before anything else reads it: what a mask means."""
    context = reach.context
    if seen is None or not context.beside:
        return False
    if seen.highest >= reach.limit and not all(_subtracted(context, value) for value in op.values):
        return False
    waiting, known = list(op.values), set(op.values)
    while waiting:
        value = waiting.pop()
        if value in context.graph.outputs:
            return False
        for reader in context.readers.get(value, ()):
            for made in reader.values:
                if made in known or not is_float(context.tensors[made].format):
                    continue
                if reach.far(made) and context.ranges[made].highest < reach.limit:
                    known.add(made)
                    waiting.append(made)
                elif reach.lost(made) or reach.far(made):
                    return False
    return True


def harmless(context: Context, op: Op) -> bool:
    """Whether the infinity is gone after its readers, and what they make of it is as it was. A gradient may still
    be infinite times zero."""
    seen = [context.beside[value].lost for value in op.values if value in context.beside]
    elsewhere = any(context.ranges[value].batch for value in op.values if value in context.ranges)
    if not any(seen) or elsewhere or context.graph.mode == "training":
        return False
    waiting, known = list(op.values), set(op.values)
    while waiting:
        value = waiting.pop()
        if value in context.graph.outputs:
            return False
        for made in (made for reader in context.readers.get(value, ()) for made in reader.values):
            found = context.beside.get(made)
            if found is None or (found.drift > _AS_BEFORE and not found.lost):
                return False
            if found.lost and made not in known:
                waiting.append(made)
            known.add(made)
    return True


def _subtracted(context: Context, value: str) -> bool:
    """Whether the value is only ever taken from something."""
    readers = context.readers.get(value, ())
    return bool(readers) and all(op.op in ("sub", "sub_") and op.operands[0].value != value for op in readers)
