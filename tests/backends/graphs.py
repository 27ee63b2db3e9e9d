"""Records of one linear, to be varied: what capture gives for `y = fc(x)` inside a model."""

from __future__ import annotations

import dataclasses
from typing import Any

from precision_audit.records import Graph, Op, Operand, Tensor

LINEAR = "torch.nn.modules.linear.Linear"


def state(key: str, shape: tuple[int, ...], format: str = "fp32", kind: str = "parameter", grad: bool = True) -> Op:
    return Op(key, "get_attr", "get_attr", kind, key.rpartition(".")[0], "", (), (Tensor(format, shape, shape, grad),))


def entering(shape: tuple[int | str, ...], hint: tuple[int, ...], format: str = "fp32") -> Op:
    return Op("x", "placeholder", "input", "input", "", "", (), (Tensor(format, shape, hint),))


def linear(module: str = "fc", weight: str = "fc.weight", bias: str = "fc.bias", **changes: Any) -> Op:
    operands = (Operand("x", "input"), Operand(weight, "weight"), *([Operand(bias, "bias")] if bias else []))
    op = Op(
        key=f"{module}/linear#0",
        target="aten.linear.default",
        op="linear",
        kind="matmul",
        module=module,
        module_type=LINEAR,
        operands=operands,
        outputs=(Tensor("fp32", (16, 48), (16, 48)),),
    )
    return dataclasses.replace(op, **changes)


def other(key: str, *operands: str, **changes: Any) -> Op:
    """Some other op that reads values."""
    module, _, name = key.partition("/")
    op = Op(
        key=key,
        target=f"aten.{name.partition('#')[0]}.default",
        op=name.partition("#")[0],
        kind="pointwise",
        module=module,
        module_type="",
        operands=tuple(Operand(value, "self") for value in operands),
        outputs=(Tensor("fp32", (16, 48), (16, 48)),),
    )
    return dataclasses.replace(op, **changes)


def graph(*ops: Op, **changes: Any) -> Graph:
    return dataclasses.replace(Graph(ops, (ops[-1].key,), "training"), **changes)


def sized(
    k: int = 64,
    n: int = 48,
    lead: tuple[int | str, ...] = (32,),
    hint: tuple[int, ...] = (32,),
    *,
    symbols: tuple[tuple[str, int], ...] = (),
    format: str = "fp32",
) -> tuple[Op, Graph]:
    """y[lead, n] = x[lead, k] · fc.weight transposed + fc.bias."""
    op = linear()
    ops = (entering((*lead, k), (*hint, k), format), state("fc.weight", (n, k), format), state("fc.bias", (n,), format))
    return op, graph(*ops, op, symbols=symbols)
