"""Numbers beyond the low range that a mask writes where the inputs say so, and nowhere on the batches that were given.

Takes a context and an op; says whether it is such a mask, and what has to run high with it: for the rule PA104. The
range of what the op makes tells nothing then, for no element was masked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_audit import ops
from precision_audit.records import Op
from precision_audit.rules import Context
from precision_audit.rules.families import base

if TYPE_CHECKING:
    from precision_audit.rules.reach import Reach


def unseen_mask(context: Context, op: Op, literal: float) -> bool:
    """`where(keep, x, -1e9)`, `(1 - keep) * -1e9`."""
    moving, name = context.moving, base(op)
    if name == "where":
        return any(each.value in moving for each in op.operands if each.argument == "condition")
    if name != "mul" or literal > 0 or len(op.operands) != 1 or op.operands[0].value not in moving:
        return False
    flags = context.ranges.get(op.operands[0].value)
    return flags is not None and flags.whole and flags.lowest >= 0 and flags.highest <= 1


def up_to_softmax(reach: Reach, op: Op) -> Iterator[str]:
    """Keys of what adds the mask to scores, and of the first op that does anything else with them."""
    waiting, seen = list(op.values), {op.key}
    while waiting:
        for reader in reach.context.readers.get(waiting.pop(), ()):
            row = ops.row(reader.op)
            if reader.key in seen or not reach.free(reader):
                continue
            seen.add(reader.key)
            yield reader.key
            moves = row is not None and row.kind in ("view_layout", "cast")
            if moves or base(reader) in ("add", "sub"):
                waiting.extend(reader.values)
