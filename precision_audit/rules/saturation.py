"""Infinities that end in an op which makes the same of them as of the number behind: tanh, a clamp, a comparison.

Takes a context and values with elements that are infinite in the low format; says whether every reader, as far as the
infinity goes, gives what the number itself would have given, to the last digit of the low format. Judged by what the
ops are: behind an infinite element is a number of at least the format's limit, and that bound is carried along (a shift
takes off it, a factor scales it). Of other operands the calibration batches tell how large they are. What it does not
know it takes for a hazard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.records import Op
from precision_audit.rules import Context
from precision_audit.rules.families import base


@dataclass(frozen=True, slots=True)
class Behind:
    """The least magnitude behind elements that are plus, and minus, infinity; None where there are none."""

    plus: float | None
    minus: float | None

    def __bool__(self) -> bool:
        return self.plus is not None or self.minus is not None


NOTHING = Behind(None, None)
# From which magnitude on the op gives the same as for plus, and for minus, infinity, in 24 bits: one minus what is left
# rounds to one, and what is left of zero is below half the smallest number of fp16.
_ENDS: Mapping[str, tuple[float, float]] = {
    "tanh": (10.0, 10.0),
    "sigmoid": (17.3, 17.3),
    "special_expit": (17.3, 17.3),
    "erf": (4.0, 4.0),
    "special_erf": (4.0, 4.0),
    "erfc": (4.0, 4.0),
    "hardsigmoid": (3.0, 3.0),
    "relu6": (6.0, 0.0),
    "atan": (1e4, 1e4),  # a right angle is left by 1e-4 of a radian, less than fp16 tells from it
    "arctan": (1e4, 1e4),
    "sign": (0.0, 0.0),
    "sgn": (0.0, 0.0),
    "exp": (math.inf, 17.3),  # a finite exponential is not infinite
    "relu": (math.inf, 0.0),
    "softplus": (math.inf, 17.3),
}
_THROUGH = frozenset({"neg", "abs", "relu", "leaky_relu", "max_pool2d", "max_pool1d", "dropout", "where",
                      "masked_fill", "contiguous", "clone", "amax", "alias"})  # fmt: skip
_COMPARES = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_CLAMPS = frozenset({"clamp", "clamp_min", "clamp_max", "hardtanh"})
_MOVES = ("view_layout", "cast", "concat", "gather_index")


def saturates(context: Context, behind: Mapping[str, Behind], far: Callable[[str], bool]) -> bool:
    """Whether what comes of the infinite elements of some values is what the numbers behind them would have given, for
    every reader; false for a model in training, where a gradient may be infinity times zero."""
    if context.graph.mode == "training":
        return False
    walk = _Walk(context, far)
    waiting = list(behind.items())
    known: dict[str, Behind] = {}
    while waiting:
        value, here = waiting.pop()
        if not here or known.get(value) == here:
            continue
        if value in known or value in context.graph.outputs or value in walk.written:
            return False  # reached twice with other bounds, given to the caller, or written to later
        known[value] = here
        for reader in context.readers.get(value, ()):
            after = walk.after(reader, value, here)
            if after is None or (not after and walk.lost(reader)):
                return False
            waiting.extend((made, after) for made in reader.values)
    return bool(known)


def overflowed(context: Context, values: Iterable[str], limit: float) -> dict[str, Behind]:
    """What is known of the elements of some values that are infinite in the low format."""
    seen = {value: context.ranges[value] for value in values if value in context.ranges}
    return {
        value: Behind(limit if each.highest >= limit else None, limit if -each.lowest >= limit else None)
        for value, each in seen.items()
    }


class _Walk:
    """What one op makes of infinite elements."""

    def __init__(self, context: Context, far: Callable[[str], bool]) -> None:
        self._context, self._far = context, far
        self.written = frozenset(value for members in context.graph.aliases for value in members)

    def lost(self, op: Op) -> bool:
        return any(self._context.beside[value].lost for value in op.values if value in self._context.beside)

    def after(self, op: Op, value: str, behind: Behind) -> Behind | None:
        """Behind which magnitudes the op's result is infinite; None where it may be something else than it should."""
        row, name = ops.row(op.op), base(op)
        others = [each.value for each in op.operands if each.value != value]
        if sum(each.value == value for each in op.operands) > 1 or op.kind == "random" or row is None:
            return None
        if name in _COMPARES:
            return NOTHING if self._beyond(op, others, behind) else None
        if name in ("minimum", "maximum"):
            return self._bounded(name, others, behind)
        if name in _CLAMPS:
            return _clamped(op, behind)
        if name in _ENDS and not (name == "softplus" and _number(op, "beta") not in (None, 1.0)):
            return _ended(name, behind)
        if row.kind in _MOVES or name in _THROUGH:
            return self._moved(op, name, value, others, behind)
        if name in ("add", "sub", "rsub"):
            return self._shifted(op, name, value, others, behind)
        if name in ("mul", "div"):
            return self._scaled(op, name, value, others, behind)
        return None

    def _finite(self, value: str) -> float | None:
        """The largest magnitude of an operand; None where it may be infinite itself, or was never seen."""
        seen, tensor = self._context.ranges.get(value), self._context.tensors[value]
        if not is_float(tensor.format):
            return None
        beside = self._context.beside.get(value)
        lost = beside is not None and (beside.lost or beside.raised)
        return None if seen is None or seen.infinite or seen.nan or self._far(value) or lost else seen.amax

    def _beyond(self, op: Op, others: list[str], behind: Behind) -> bool:
        """Whether the numbers lie outside of all that they are compared with."""
        bounds = [_number(op, "other")] if not others else [self._finite(value) for value in others]
        least = min(each for each in (behind.plus, behind.minus) if each is not None)
        return all(bound is not None and abs(bound) < least for bound in bounds)

    def _bounded(self, name: str, others: list[str], behind: Behind) -> Behind | None:
        """The smaller of two numbers is the other one where this one is beyond it."""
        if not others or self._finite(others[0]) is None:
            return None
        other, plus, minus = self._context.ranges[others[0]], behind.plus, behind.minus
        if name == "minimum":
            return Behind(None, minus) if plus is None or other.highest <= plus else None
        return Behind(plus, None) if minus is None or other.lowest >= -minus else None

    def _moved(self, op: Op, name: str, value: str, others: list[str], behind: Behind) -> Behind | None:
        argument = next(each.argument for each in op.operands if each.value == value)
        if argument in ("condition", "mask", "index", "indices"):
            return None
        if name == "neg":
            return Behind(behind.minus, behind.plus)
        if name == "abs":
            return Behind(min(each for each in (behind.plus, behind.minus) if each is not None), None)
        if name == "leaky_relu":
            slope = _number(op, "negative_slope")
            if slope is not None and slope <= 0:
                return None
            return Behind(
                behind.plus, None if behind.minus is None else behind.minus * (0.01 if slope is None else slope)
            )
        if not all(is_float(tensor.format) for tensor in op.outputs):
            return None
        floats = [each for each in others if is_float(self._context.tensors[each].format)]
        return behind if all(self._finite(each) is not None for each in floats) else None

    def _shifted(self, op: Op, name: str, value: str, others: list[str], behind: Behind) -> Behind | None:
        alpha = dict(op.attributes).get("alpha", 1)
        amount = self._finite(others[0]) if others else _number(op, "other")
        if amount is None or alpha != 1:
            return None
        left = [None if each is None else each - abs(amount) for each in (behind.plus, behind.minus)]
        if any(each is not None and each <= 0 for each in left):
            return None
        turned = (name == "sub" and op.operands[0].value != value) or (name == "rsub" and op.operands[0].value == value)
        return Behind(left[1], left[0]) if turned else Behind(left[0], left[1])

    @staticmethod
    def _scaled(op: Op, name: str, value: str, others: list[str], behind: Behind) -> Behind | None:
        factor = _number(op, "other")
        if others or factor is None or factor == 0 or dict(op.attributes).get("rounding_mode"):
            return None
        factor = factor if name == "mul" else 1 / factor
        left = [None if each is None else each * abs(factor) for each in (behind.plus, behind.minus)]
        return Behind(left[1], left[0]) if factor < 0 else Behind(left[0], left[1])


def _number(op: Op, name: str) -> float | None:
    value = dict(op.attributes).get(name)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fits else None  # type: ignore[arg-type]


def _clamped(op: Op, behind: Behind) -> Behind | None:
    """Bounds that are numbers; without one on its side an infinity goes through."""
    if len(op.operands) > 1:
        return None
    low = next((found for name in ("min", "min_val") if (found := _number(op, name)) is not None), None)
    high = next((found for name in ("max", "max_val") if (found := _number(op, name)) is not None), None)
    if base(op) == "hardtanh":
        low, high = (-1.0 if low is None else low), (1.0 if high is None else high)
    plus, minus = behind.plus, behind.minus
    if plus is not None and high is not None:
        if plus < high:
            return None
        plus = None
    if minus is not None and low is not None:
        if -minus > low:
            return None
        minus = None
    return Behind(plus, minus)


def _ended(name: str, behind: Behind) -> Behind | None:
    """An end on one side only hands on the other."""
    plus, minus = _ENDS[name]
    left = Behind(behind.plus if math.isinf(plus) else None, None)
    if behind.plus is not None and not math.isinf(plus) and behind.plus < plus:
        return None
    if behind.minus is not None and behind.minus < minus:
        return None
    return left
