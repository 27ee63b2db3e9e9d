"""Numbers and formats that are written into an op, adapted when the op runs in another format.

Takes a node, its record and the chosen format; changes the node's arguments in place. A format argument that follows
the example becomes the chosen one, a factory without one gets it; a format's limit (`torch.finfo(x.dtype).min`) becomes
the same limit of the chosen format; a finite fill value beyond the chosen format's range saturates, since a mask of
-1e9 must not become -inf (a row of only -inf turns into NaN) and some kernels refuse the value. A true infinity stays.
`as_written` leaves a value beyond the range where torch takes it and writes infinity: what a cast of the model does.
`x.type_as(y)` becomes a cast to the chosen format, which need not be the one that y has by now.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from precision_audit import ops
from precision_audit.capture.graph import named_arguments
from precision_audit.formats import FORMATS, dtype_of, is_float
from precision_audit.records import Op

# Ops in which a number written in the code becomes an element of the result, or bounds it.
_FILLS = frozenset(
    {"full", "full_like", "new_full", "fill", "masked_fill", "where", "scalar_tensor", "constant_pad_nd", "pad"}
    | {"clamp", "clamp_min", "clamp_max", "hardtanh", "index_fill", "threshold", "nan_to_num"}
)
_TAKES = frozenset({"where", "scalar_tensor"})  # of them, those that refuse no number
_LIMITS = ("max", "min", "eps", "tiny", "smallest_normal", "resolution")


def reformat(node: fx.Node, op: Op, chosen: str, high: str, as_written: bool = False) -> None:
    """Adapt the literals of `node` to the format `chosen` for it."""
    captured = next((t.format for t in op.outputs if is_float(t.format)), "")
    if not captured or captured != high or chosen not in FORMATS:
        return
    if op.op in ops.LIKE and any(operand.argument == "other" for operand in op.operands):
        _cast_outright(node, chosen)
    if chosen == captured:
        return
    named = named_arguments(node)
    count = len(node.args)
    saturates = op.op in _FILLS and not (as_written and op.op in _TAKES)
    values = [_adapted(op, name, value, captured, chosen, saturates) for name, value in named]
    node.args = tuple(values[:count])
    node.kwargs = dict(zip(node.kwargs, values[count:], strict=True))
    if _needs_format(node, op):
        node.kwargs = {**node.kwargs, "dtype": dtype_of(chosen)}


def _cast_outright(node: fx.Node, chosen: str) -> None:
    source, _, *further = node.args
    assert isinstance(source, fx.Node)
    here, there = (getattr(each.meta.get("val"), "device", None) for each in (source, node))
    if here == there:
        node.target, node.args = torch.ops.aten.to.dtype, (source, dtype_of(chosen), *further)
    else:
        node.target, node.args = torch.ops.aten.to.device, (source, there, dtype_of(chosen), *further)


def _needs_format(node: fx.Node, op: Op) -> bool:
    """A factory that took the default format: no tensor operand tells it what to make."""
    if not isinstance(node.target, torch._ops.OpOverload) or op.operands or "dtype" in node.kwargs:
        return False
    return any(argument.name == "dtype" for argument in node.target._schema.arguments)


def _adapted(op: Op, name: str, value: Any, captured: str, chosen: str, saturates: bool) -> Any:
    if isinstance(value, torch.dtype):
        return dtype_of(chosen) if op.follows and value == dtype_of(captured) else value
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        number = _limit(value, captured, chosen) if op.follows else value
        return _saturated(number, chosen) if saturates and name not in ("dim", "size", "pad") else number
    return value


def _limit(value: float, captured: str, chosen: str) -> float:
    old, new = torch.finfo(dtype_of(captured)), torch.finfo(dtype_of(chosen))
    for name in _LIMITS:
        for factor in (1.0, 0.5):
            if value == getattr(old, name) * factor:
                return float(getattr(new, name) * factor)
    return value


def _saturated(value: float, chosen: str) -> float:
    limit = FORMATS[chosen].max_finite
    if math.isinf(value) or math.isnan(value) or abs(value) <= limit:
        return value
    return math.copysign(limit, value)
