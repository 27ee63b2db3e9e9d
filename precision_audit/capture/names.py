"""Keys of ops and names of symbolic sizes.

Takes module paths, op names and torch's symbolic sizes; gives `module.path/op#occurrence` and sizes as integers or as
expressions of the names people gave (`B*T`), with the example's value of each name. Never guards on a size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import sympy
import torch


class Namer:
    """Gives keys to ops and names to symbolic sizes."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        self._count: dict[tuple[str, str], int] = defaultdict(int)
        self._examples: dict[str, int] = {}

    def key(self, module: str, op: str) -> str:
        number = self._count[module, op]
        self._count[module, op] += 1
        return f"{module}/{op}#{number}"

    def size(self, size: int | torch.SymInt) -> int | str:
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression.is_Integer:
            return int(expression)
        for symbol in expression.free_symbols:
            self._examples.setdefault(self._label(symbol), hint(size.node.shape_env, symbol))
        return str(
            expression.xreplace({s: sympy.Symbol(self._label(s), integer=True) for s in expression.free_symbols})
        )

    def symbols(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self._examples.items()))

    def _label(self, symbol: Any) -> str:
        return self._labels.get(str(symbol), str(symbol))


def hint(shape_env: Any, symbol: Any) -> int:
    """The example's value of one symbol; 1 where the size is known only at run time."""
    value = shape_env.backed_var_to_val.get(symbol) if hasattr(shape_env, "backed_var_to_val") else None
    if value is None:
        value = _known(shape_env).get(symbol)
    return int(value) if value is not None else 1


def example_size(size: torch.SymInt) -> int:
    """The example's value of a symbolic size; sizes known only at run time count as 1."""
    expression = size.node.expr
    env = size.node.shape_env
    return int(expression.subs({symbol: hint(env, symbol) for symbol in expression.free_symbols}))


def channels_last(value: torch.Tensor, example: tuple[int, ...]) -> bool:
    """Whether kernels take an image or volume of that size as channels-last; of one channel or one position, not."""
    if len(example) not in (4, 5) or value.layout != torch.strided or min(example[1], math.prod(example[2:])) < 2:
        return False
    strides = [each if isinstance(each, int) else example_size(each) for each in value.stride()]
    return strides[1] == 1 and strides[-1] == example[1]


def _known(shape_env: Any) -> Any:
    """Sizes of the example by symbol; the older name is deprecated where both are there."""
    name = "backed_var_to_val" if hasattr(shape_env, "backed_var_to_val") else "var_to_val"
    return getattr(shape_env, name, {})
