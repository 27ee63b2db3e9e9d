"""Ops that lose nothing by running low: taken out of every remedy.

Takes a context and findings; gives the findings, some with fewer pins. A remedy keeps the whole chain that makes a
number, back to the inputs, and knows of an op only that it is there. An op is lossless where every element that it
reads and makes is held exactly by the low format, on all batches, where the same is true of all that its operands
descend from, and where the low model made the same numbers of it on the example: differences of pixel coordinates that
are whole numbers, positions up to 2048, masks of ones. Run low it hands on the very numbers that it makes in the high
format. What is zero throughout tells nothing, and a random draw is another one in another format.

Never takes the op that a finding names, which a missing kernel may ask for whatever the numbers, nor its last pin. In
training parameters move on from the numbers that were seen, and gradients have others: there nothing is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.records import Facts, Finding, Graph, Op, Range

if TYPE_CHECKING:
    from precision_audit.records import Beside

_STATE = ("input", "parameter", "buffer", "constant")
_OF_NUMBERS = ("PA1", "PA2", "PA3")


def without_lossless(findings: Iterable[Finding], graph: Graph, facts: Facts, low: str) -> Iterator[Finding]:
    """The same findings without pins on lossless ops."""
    idle = lossless(graph, facts, low) if graph.mode == "inference" else frozenset()
    for each in findings:
        left = tuple(key for key in each.pins if key not in idle or key == each.op)
        yield replace(each, pins=left) if left and each.rule.startswith(_OF_NUMBERS) else each


def lossless(graph: Graph, facts: Facts, low: str) -> frozenset[str]:
    """Keys of the computed ops that lose nothing in the format `low`."""
    ranges = {each.value: each for each in facts.ranges}
    beside = {each.value: each for each in facts.beside}
    written = frozenset(value for members in graph.aliases for value in members)  # later than they were seen
    exact: set[str] = set()
    for op in graph.ops:
        if not all(operand.value in exact for operand in op.operands) or op.kind == "random" or op.mutates:
            continue
        if not written.isdisjoint(op.values):
            continue
        floats = [value for value, each in zip(op.values, op.outputs, strict=True) if is_float(each.format)]
        if op.kind in _STATE:
            kept = all(_held(ranges.get(value), low) for value in floats)
        else:
            row = ops.row(op.op)
            kept = row is not None and all(_as_captured(value, ranges, beside, low) for value in floats)
        if kept:
            exact.update(op.values)
    return frozenset(op.key for op in graph.ops if _computes(op) and exact.issuperset(op.values))


def _computes(op: Op) -> bool:
    return op.kind not in _STATE and any(is_float(each.format) for each in op.outputs)


def _as_captured(value: str, ranges: Mapping[str, Range], beside: Mapping[str, Beside], low: str) -> bool:
    seen = beside.get(value)
    same = seen is not None and not (seen.drift or seen.lost or seen.raised)
    return same and _held(ranges.get(value), low)


def _held(seen: Range | None, low: str) -> bool:
    return seen is not None and low in seen.held and seen.amax > 0
