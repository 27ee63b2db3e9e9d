"""Op records made by hand: from a call of an aten overload, as the capture would write them.

`recorded(torch.ops.aten.linear.default, x, w)` gives the `Op` and the tensors it reads; outputs come from running the
op on the meta device. `Chain` strings such calls together into a `Graph`.
"""

from __future__ import annotations

from typing import Any

import torch

from precision_audit import ops
from precision_audit.formats import format_of
from precision_audit.records import Graph, Op, Operand, Source, Tensor


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor with a shape and no numbers."""
    return torch.empty(shape, dtype=dtype, device="meta")


def record(value: torch.Tensor, requires_grad: bool = False) -> Tensor:
    return Tensor(format_of(value.dtype), tuple(value.shape), tuple(value.shape), requires_grad)


def recorded(overload: Any, *args: Any, **kwargs: Any) -> tuple[Op, list[Tensor]]:
    """The op and its inputs, in the order of its operands."""
    op, values, _ = call(overload, {}, "", args, kwargs)
    return op, [record(value) for value in values]


def call(
    overload: Any, names: dict[int, str], module: str, args: tuple[Any, ...], kwargs: dict[str, Any], **fields: Any
) -> tuple[Op, list[torch.Tensor], Any]:
    """Op, tensors read and result of one call; `names` gives the value names of tensors by id."""
    schema = overload._schema
    given = {schema.arguments[i].name: value for i, value in enumerate(args)} | kwargs
    operands, attributes, values = [], [], []
    for name, value in given.items():
        leaves = value if isinstance(value, (list, tuple)) else [value]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        operands.extend(Operand(names.get(id(leaf), f"value{len(values) + i}"), name) for i, leaf in enumerate(tensors))
        values.extend(tensors)
        if not tensors:
            plain = format_of(value) if isinstance(value, torch.dtype) else value
            attributes.append((name, tuple(plain) if isinstance(plain, list) else plain))
    result = overload(*args, **kwargs)
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    base = schema.name.removeprefix("aten::")
    row = ops.row(base)
    mutated = next((a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write), "")
    op = Op(
        key=f"{module}/{base}#{fields.pop('number', 0)}",
        target=str(overload),
        op=row.name if row else base,
        kind=row.kind if row else "unknown",
        module=module,
        module_type="",
        operands=tuple(operands),
        outputs=tuple(record(each) for each in outputs),
        attributes=tuple(attributes),
        mutates=mutated,
        **fields,
    )
    return op, values, result


class Chain:
    """A graph under construction. `run` records a call and returns its result, to be given to the next call."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []  # ids must not be used again
        self.captured: dict[str, torch.Tensor] = {}  # inputs and parameters by key

    def state(self, key: str, value: torch.Tensor, kind: str = "input", requires_grad: bool = False) -> torch.Tensor:
        output = record(value, requires_grad or kind == "parameter")
        self._ops.append(Op(key, "placeholder" if kind == "input" else "get_attr", kind, kind, "", "", (), (output,)))
        self._name(value, key)
        self.captured[key] = value
        return value

    def run(self, overload: Any, *args: Any, **kwargs: Any) -> Any:
        fields = {name: kwargs.pop(name) for name in ("region", "fixed", "source") if name in kwargs}
        number = len(self._ops)
        op, _, result = call(overload, self._names, "", args, kwargs, number=number, **fields)
        self._ops.append(op)
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        for value, name in zip(outputs, op.values, strict=True):
            self._name(value, name)
        return result

    def _name(self, value: torch.Tensor, name: str) -> None:
        self._names[id(value)] = name
        self._alive.append(value)

    def graph(self, *outputs: torch.Tensor) -> Graph:
        return Graph(tuple(self._ops), tuple(self._names[id(value)] for value in outputs), "training")


LINE = Source("model.py", 7, "forward", "return loss(x, y)")
