"""Who lost a gradient: from a parameter back along the lost ones to the op that made it so.

Takes a graph and which edges lost elements, in a run as it is and in one where every loss was mended on the spot; gives
the ops to blame, and what leads to them. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from precision_audit.analyse.gradients import Edge
from precision_audit.analyse.twin import written
from precision_audit.records import Graph, Op


def to_blame(graph: Graph, lost: Mapping[Edge, int], own: Mapping[Edge, int]) -> dict[str, str]:
    """Keys of the ops to blame, in graph order, and the operand whose gradient they lose: those that lose one by
    themselves (`own`) and from which a path of lost gradients leads to a parameter."""
    readers: dict[str, dict[str, Op]] = {}
    for op in graph.ops:
        for operand in op.operands:
            readers.setdefault(operand.value, {})[op.key] = op
    apart = written(graph)
    waiting = [op.key for op in graph.ops if op.kind in ("parameter", "input") and lost.get((op.key, ""))]
    seen, found = set(waiting), dict[str, str]()
    while waiting:
        value = waiting.pop()
        reading = readers.get(value, {})
        told = len(reading) + graph.outputs.count(value) > 1 and value not in apart
        for op in reading.values():
            if told and not lost.get((value, op.key)):
                continue
            alone = len(reading) == 1 and value not in graph.outputs
            if own.get((value, op.key)) if told else alone and own.get((value, "")):
                found.setdefault(op.key, value)
            received = [each for each in op.values if lost.get((each, "")) and each not in seen]
            waiting.extend(received)
            seen.update(received)
    return {op.key: found[op.key] for op in graph.ops if op.key in found}


def by_themselves(graph: Graph, gone: Mapping[Edge, int]) -> dict[Edge, int]:
    """Of the edges whose gradient is gone, those whose op received one that is not."""
    found: dict[Edge, int] = {}
    for op in graph.ops:
        if any(gone.get((value, "")) for value in op.values):
            continue
        for operand in op.operands:
            for edge in ((operand.value, op.key), (operand.value, "")):
                if edge in gone:
                    found[edge] = gone[edge]
    return found


def led_from(graph: Graph, key: str) -> set[str]:
    """Keys of the ops and state from which a path leads to the op."""
    return _reached(key, _made_by(graph))


def joined(graph: Graph, key: str, among: frozenset[str]) -> tuple[str, ...]:
    """The ops `among` that hang together with the op, in graph order."""
    near: dict[str, set[str]] = {each: set() for each in among}
    for reader, makers in _made_by(graph).items():
        for maker in makers & among if reader in among else ():
            near[reader].add(maker)
            near[maker].add(reader)
    found = _reached(key, near) | {key}
    return tuple(op.key for op in graph.ops if op.key in found)


def _made_by(graph: Graph) -> dict[str, set[str]]:
    """By op, the ops that make its operands."""
    makers = {value: op.key for op in graph.ops for value in op.values}
    return {op.key: {makers[o.value] for o in op.operands if o.value in makers} for op in graph.ops}


def _reached(start: str, near: Mapping[str, set[str]]) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        more = near[waiting.pop()] - found
        found |= more
        waiting.extend(more)
    return found
