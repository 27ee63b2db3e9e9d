"""Reading an op's arguments by name, for the formulas of its work.

Takes an op and the tensors it reads, in the order of its operands; gives sizes and numbers of the example. An argument
that was not given reads as the default that the formula names. Never guesses: a formula that asks for a tensor which
the op does not have gets one of no elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precision_audit.records import Op, Tensor


@dataclass(frozen=True, slots=True)
class Sizes:
    """Example sizes of one tensor."""

    hint: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.hint)

    @property
    def rank(self) -> int:
        return len(self.hint)

    def size(self, axis: int) -> int:
        """Size of an axis, counted from the end when negative; 1 for an axis it does not have."""
        return self.hint[axis] if -self.rank <= axis < self.rank else 1


@dataclass(frozen=True, slots=True)
class Work:
    """An op with its arguments at hand."""

    op: Op
    tensors: tuple[Sizes, ...]
    attributes: dict[str, object]

    @classmethod
    def of(cls, op: Op, inputs: Sequence[Tensor]) -> Work:
        return cls(op, tuple(Sizes(tensor.hint) for tensor in inputs), dict(op.attributes))

    def first(self) -> Sizes:
        """The tensor that is worked on: the first operand."""
        return self.tensors[0] if self.tensors else Sizes((0,))

    def made(self) -> int:
        """Elements of the first output."""
        return math.prod(self.op.outputs[0].hint) if self.op.outputs else 0

    def has(self, argument: str) -> bool:
        return any(operand.argument == argument for operand in self.op.operands)

    def argument(self, argument: str) -> Sizes:
        """The tensor given for an argument."""
        return next(iter(self.all(argument)), Sizes((0,)))

    def all(self, argument: str) -> list[Sizes]:
        """The tensors given for an argument that takes a list."""
        pairs = zip(self.op.operands, self.tensors, strict=True)
        return [tensor for operand, tensor in pairs if operand.argument == argument]

    def attribute(self, name: str, default: object = None) -> object:
        found = self.attributes.get(name)
        return default if found is None else found

    def number(self, name: str, default: float) -> float:
        found = self.attribute(name, default)
        if isinstance(found, (tuple, list)) and len(found) == 1:
            found = found[0]
        return found if isinstance(found, (int, float)) else default

    def numbers(self, name: str, count: int, default: int) -> list[int]:
        """A list argument of `count` integers; one stands for all."""
        found = self.attribute(name, default)
        values = [found] if isinstance(found, int) else found
        plain = [each for each in values if isinstance(each, int)] if isinstance(values, (tuple, list)) else []
        if not plain:
            return [default] * count
        return plain * count if len(plain) == 1 else plain

    def axes(self, tensor: Sizes) -> list[int]:
        """The axes that a reduction runs over: those named by `dim`, all where it names none."""
        found = self.attribute("dim")
        named = [found] if isinstance(found, int) else found
        if not isinstance(named, (tuple, list)) or not named:
            return list(range(tensor.rank))
        return [each for each in named if isinstance(each, int)]
