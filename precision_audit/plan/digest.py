"""A graph's structure as one short text: equal digests, equal graphs for the purposes of a plan.

Takes a graph; gives `sha256:` and 16 hex digits over ops, operands, symbolic shapes, formats and sharing. Source lines
and the example's sizes do not count: a plan stays valid when a file is reformatted or another batch is traced.
"""

from __future__ import annotations

import hashlib

from precision_audit.records import Graph

_DIGITS = 16


def digest(graph: Graph) -> str:
    """The digest that a plan is written with."""
    lines = [f"mode {graph.mode}", f"outputs {' '.join(graph.outputs)}"]
    for op in graph.ops:
        operands = " ".join(f"{operand.argument}={operand.value}" for operand in op.operands)
        outputs = " ".join(f"{tensor.format}{tensor.shape}" for tensor in op.outputs)
        lines.append(f"{op.key} {op.target} ({operands}) {op.attributes} -> {outputs} {op.mutates} {op.fixed}")
    lines.extend(f"memory {members}" for members in graph.aliases)
    lines.extend(f"storage {members}" for members in graph.storages)
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_DIGITS]
