"""Which rule tells of which trap: shared by PA301 (mixed formats), PA302 (no kernel) and PA303 (complex).

Takes a context; gives the traps with their ops, each of one sort, so that no two rules tell of the same. A number that
does not fit the format raises as well; that is PA104's. Where the low model beside the captured one really raised and
the walk over the graph had not foreseen it, that counts as a trap too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from precision_audit.formats import is_float
from precision_audit.records import Evidence, Op, Trap
from precision_audit.rules import Context

Sort = Literal["mixed", "kernel", "complex", "number"]

_FROM_THE_TABLE = ("no ", "on cuda")  # how an answer of the op table begins and ends


def trapped(context: Context, sort: Sort) -> Iterator[tuple[Op, Trap]]:
    """Ops that raise for a reason of this sort, in graph order."""
    ops = context.by_key()
    for trap in context.facts.traps:
        if sort_of(ops[trap.op], trap) == sort:
            yield ops[trap.op], trap
    foreseen = {trap.op for trap in context.facts.traps}
    if context.hardware.kernels == "cpu" and not context.policy.autocast:
        for op in context.computed():
            raised = next((seen.raised for value in op.values if (seen := context.beside.get(value))), "")
            trap = Trap(op.key, "cast", raised)
            if raised and op.key not in foreseen and _speaks_of_kernels(raised) and sort_of(op, trap) == sort:
                yield op, trap


def sort_of(op: Op, trap: Trap) -> Sort:
    """Why it raises."""
    if "without overflow" in trap.text:
        return "number"
    if op.kind == "complex" or any(name.startswith("complex") for name in trap.formats):
        return "complex"
    recurrent = trap.way == "autocast" and op.kind == "rnn"  # autocast casts all of it, and there is no such kernel
    return "mixed" if len(set(trap.formats)) > 1 and not recurrent else "kernel"


def evidence(context: Context, trap: Trap) -> Evidence:
    """The error's own words, and how they came about."""
    start, end = _FROM_THE_TABLE
    if trap.text.startswith(start) and trap.text.endswith(end):
        return Evidence("ASSUMED", f"op table: {trap.text}")
    return Evidence("PROVED", f"the op raises on these formats, whatever the numbers: {trap.text}")


def way(context: Context, trap: Trap) -> str:
    """What the user would do to the model, as a message says it."""
    if trap.way == "autocast":
        return f"torch.autocast({context.policy.autocast}, {context.low.name})"
    return f"model.to({context.low.name})"


def reads(op: Op, trap: Trap, context: Context) -> str:
    """`input fp32, weight bf16`: which operand has which format there."""
    floats = [each.argument for each in op.operands if _fraction(context.tensors[each.value].format)]
    if len(floats) != len(trap.formats):
        return " and ".join(dict.fromkeys(trap.formats))
    shown: dict[tuple[str, str], None] = dict.fromkeys(zip(floats, trap.formats, strict=True))
    return ", ".join(f"{argument} {name}" for argument, name in shown)


def origin(op: Op, trap: Trap, context: Context) -> str:
    """Where an operand that is not low got its format from, in words; "" if that is not plain."""
    floats = [each for each in op.operands if _fraction(context.tensors[each.value].format)]
    if len(floats) != len(trap.formats) or trap.way == "autocast":
        return ""
    for operand, name in zip(floats, trap.formats, strict=True):
        if name != context.low.name:
            return _made_by(operand.value, context)
    return ""


def _made_by(value: str, context: Context) -> str:
    seen: set[str] = set()
    queue = [value]
    for each in queue:
        op = context.maker[each]
        at = f" at line {op.source.line}" if op.source else ""
        if op.kind == "constant" and op.key.startswith("lifted_tensor"):
            return "a tensor made in forward in the default format"
        if op.kind == "constant":
            return f"{op.key} is a plain attribute, which .to() leaves as it is"
        if op.fixed == "explicit cast":
            return f"the model's own {op.op}{at}"
        if op.kind == "factory" and not op.operands and not op.follows:
            return f"{op.op}(){at} makes the default format"
        seen.add(each)
        queue.extend(o.value for o in op.operands if o.value not in seen and o.value not in queue)
    return ""


def _fraction(name: str) -> bool:
    return is_float(name) or name.startswith("complex")


def _speaks_of_kernels(text: str) -> bool:
    return "not implemented for" in text or "upported" in text
