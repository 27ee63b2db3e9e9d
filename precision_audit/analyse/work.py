"""What the graph costs, from shapes alone.

Takes the captured graph's records; gives FLOPs, bytes and parameters. Never runs the model.
"""

from __future__ import annotations

import math

from precision_audit import ops
from precision_audit.records import Graph, Tensor


def work_of(graph: Graph) -> tuple[int, int]:
    """Floating-point operations of one forward pass, and bytes moved in the captured formats."""
    tensors = tensors_of(graph)
    flops = moved = 0
    for op in graph.ops:
        inputs = [tensors[operand.value] for operand in op.operands]
        flops += ops.flops(op, inputs)
        moved += ops.bytes_moved(op, inputs, "")
    return flops, moved


def tensors_of(graph: Graph) -> dict[str, Tensor]:
    """Every value of the graph with its format and shape."""
    return {value: tensor for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)}


def parameters_of(graph: Graph) -> int:
    """Number of parameter elements; a tied parameter counts once."""
    again = {name for names in graph.storages for name in names[1:]}
    return sum(math.prod(op.outputs[0].hint) for op in graph.ops if op.kind == "parameter" and op.key not in again)
