"""How far a value beyond the low format's range goes: shared by the rules about overflow (PA101, PA103 to PA106, 112).

Takes a context; gives one `Origin` per place where the captured model first makes, or is given, a value that the low
format would turn into infinity, with the ops that must run high until the values are back in range. Never reports an
op that merely inherits such a value. Three kinds of value beyond the range are no hazard by themselves:

    infinite    a true -inf in a mask is one in every format, and ranges count finite elements only
    adapted     a literal that follows the example's format (`torch.finfo(x.dtype).min`) becomes the low format's own
                limit, in the user's cast model and in the converted one; adding to it can overflow then (PA105)
    shielded    computed from what the user cast to the high format himself: a cast of the module leaves it high, so
                it is worth a note and a pin only
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from precision_audit import ops
from precision_audit.capture.origins import LIMITS
from precision_audit.formats import FORMATS, is_float
from precision_audit.plain import REFUSES, high_by_casts
from precision_audit.records import Op, Range
from precision_audit.rules import Context
from precision_audit.rules.absorption import absorbed, harmless, settled, settled_by
from precision_audit.rules.families import base
from precision_audit.rules.limits import overflows_at
from precision_audit.rules.masks import unseen_mask, up_to_softmax
from precision_audit.rules.saturation import overflowed, saturates

STATE = ("parameter", "buffer", "constant", "input")
# Arguments that hold a number which becomes an element of the result, or bounds or scales one.
_NUMBERS = ("value", "fill_value", "other", "min", "max", "min_val", "max_val", "s")
_EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "sinh", "cosh", "special_exp2", "special_expm1"})
_ADDS = frozenset({"add", "sub", "rsub"})
_GEMMS = ("matmul", "conv", "attention", "rnn")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value first leaves the low range. `rule` is the code that reports it, `op` the culprit, `value` what is
    out of range, `literal` the number in the code if that is the cause, `lost` elements that the low model loses."""

    rule: str
    op: Op
    value: str
    seen: Range | None
    pins: tuple[str, ...]
    shielded: bool
    literal: float | None = None
    lost: int = 0
    absorbed: bool = False  # every reader takes the infinity for what the number meant: a mask before softmax
    settled: bool = False  # and which elements are infinite hangs on no input: a causal mask
    saturated: bool = False  # every reader makes of the infinity what it would make of any such number: tanh, a clamp
    harmless: bool = False  # on the example the readers made of it what they make of the number: 1 / (1 + exp(x))


def numbers(op: Op) -> Iterator[tuple[str, float]]:
    """Numbers written into the op that meet its elements, by argument."""
    for name, value in op.attributes:
        meets = name in _NUMBERS or (name == "self" and base(op) == "where")
        if meets and isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


def adapts(op: Op, number: float) -> bool:
    """Whether a number written into the op follows the example's format: its largest, its eps. In `full(…, -1e9,
    dtype=x.dtype)` the format follows, the number does not."""
    return op.follows and number in LIMITS


class Reach:
    """What lies beyond the low range in one graph. Made anew by each rule: it holds lookups only."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.limit = overflows_at(context.low)
        self.high = context.policy.high
        self._decided = frozenset(op.key for op in context.computed())

    def free(self, op: Op) -> bool:
        """Whether the op could run low at all: nobody has fixed its format."""
        return op.key in self._decided and not op.fixed and any(t.format == self.high for t in op.outputs)

    def inputs(self, op: Op) -> Iterator[str]:
        """The float values that the op reads in the high format."""
        for operand in op.operands:
            tensor = self.context.tensors.get(operand.value)
            if tensor is not None and tensor.format == self.high:
                yield operand.value

    @cached_property
    def shielded(self) -> frozenset[str]:
        """Values in the high format because the user said so, directly or by promotion."""
        return high_by_casts(self.context.graph, self.high)

    @cached_property
    def adapted(self) -> frozenset[str]:
        """Values beyond the range only through literals that the conversion turns into the low format's own limits."""
        found: set[str] = set()
        for op in self.context.graph.ops:
            far = [value for value in self.inputs(op) if self.far(value)]
            source = any(abs(number) >= self.limit and adapts(op, number) for _, number in numbers(op))
            if (source and all(v in found for v in far)) or (far and all(v in found for v in far)):
                found.update(value for value in op.values if self.far(value) and not self.lost(value))
        return frozenset(found)

    def far(self, value: str) -> bool:
        """Whether a finite element of the value was seen beyond the low range."""
        seen = self.context.ranges.get(value)
        tensor = self.context.tensors.get(value)
        if seen is None or tensor is None or tensor.format != self.high or not is_float(tensor.format):
            return False
        return seen.amax >= self.limit

    def beyond(self, value: str) -> bool:
        return self.far(value) and value not in self.adapted

    def lost(self, value: str) -> int:
        found = self.context.beside.get(value)
        return found.lost if found is not None else 0

    def pins(self, values: tuple[str, ...], culprit: Op | None = None) -> tuple[str, ...]:
        """The culprit, the makers of adapted values it reads, and all readers until the values are back in range."""
        found: dict[str, None] = {}
        if culprit is not None:
            for op in self._makers_of_far(culprit):
                found[op.key] = None
            if self.free(culprit):
                found[culprit.key] = None
        waiting, seen = list(values), set(values)
        while waiting:
            for reader in self.context.readers.get(waiting.pop(), ()):
                if self.free(reader):
                    found[reader.key] = None
                for value in reader.values:
                    if value not in seen and self.far(value):
                        seen.add(value)
                        waiting.append(value)
        return tuple(op.key for op in self.context.graph.ops if op.key in found)

    def _makers_of_far(self, op: Op) -> Iterator[Op]:
        waiting, seen = [op], {op.key}
        while waiting:
            for value in self.inputs(waiting.pop()):
                maker = self.context.maker.get(value)
                if maker is not None and maker.key not in seen and self.far(value):
                    seen.add(maker.key)
                    waiting.append(maker)
                    if self.free(maker):
                        yield maker

    def origins(self) -> Iterator[Origin]:
        """Every place where the range is left for the first time, in graph order."""
        told: set[str] = set()
        for op in self.context.graph.ops:
            if op.kind in STATE:
                yield from self._given(op, told)
            elif op.fixed in ("", "explicit cast"):
                yield from self._made(op, told)

    def _given(self, op: Op, told: set[str]) -> Iterator[Origin]:
        """A parameter, buffer, constant or input beyond the range, reported at the first op that computes with it."""
        for value in op.values:
            reader = next(self.first_uses(value), None)
            if self.beyond(value) and reader is not None and reader.key not in told and self._cast(reader, value):
                told.add(reader.key)
                rule = {"constant": "PA104", "input": "PA101"}.get(op.kind, "PA106")
                seen = self.context.ranges[value]
                literal = seen.lowest if op.kind == "constant" and seen.lowest == seen.highest else None
                found = self._origin(rule, reader, value, self.pins((value,)), literal)
                if rule == "PA106" and _scales(reader, value):  # zero times what the user's cast makes infinite
                    found = replace(found, absorbed=False, settled=False)
                yield found

    def _cast(self, op: Op, value: str) -> bool:
        """Whether anything casts the value: autocast leaves running statistics as they are, a cast of the module no."""
        names = (o.argument for o in op.operands if o.value == value)
        kernels = self.context.hardware.kernels
        return not self.context.policy.autocast or all(ops.role(op, name, kernels) != "stays" for name in names)

    def first_uses(self, value: str) -> Iterator[Op]:
        """The ops that do more than move the value, in graph order; a reader that only moves it if none does."""
        readers = self.context.readers.get(value, ())
        for reader in readers:
            row = ops.row(reader.op)
            moves = row is not None and row.kind == "view_layout" and len(reader.values) == 1
            moved = self.context.readers.get(reader.values[0], ()) if moves else ()
            yield from self.first_uses(reader.values[0]) if moved else (reader,)

    def _made(self, op: Op, told: set[str]) -> Iterator[Origin]:
        if any(self.beyond(value) for value in self.inputs(op)) or op.key in told:
            return  # inherited
        literal = next((n for _, n in numbers(op) if self.limit <= abs(n) < math.inf and not adapts(op, n)), None)
        values = tuple(value for value in op.values if self.beyond(value))
        if values:
            rule = self._kind(op, literal)
            pins = self.pins(values, op)
            if rule == "PA103":  # an absolute error of the exponent is a relative one of the result
                before = {each.key for each in self._exponent(op)}
                pins = tuple(each.key for each in self.context.graph.ops if each.key in before or each.key in pins)
            yield self._origin(rule, op, values[0], pins, literal)
        elif literal is not None and base(op) in REFUSES and self.free(op):
            yield self._origin("PA104", op, op.values[0], self.pins((), op), literal)
        elif literal is not None and self.free(op) and unseen_mask(self.context, op, literal):
            yield self._origin("PA104", op, op.values[0], (op.key, *up_to_softmax(self, op)), literal)

    def _exponent(self, op: Op) -> Iterator[Op]:
        """The pointwise ops that make the exponent, back to what is no arithmetic on single elements."""
        waiting, seen = [op], {op.key}
        while waiting and len(seen) < 8:
            for value in self.inputs(waiting.pop()):
                maker = self.context.maker[value]
                row = ops.row(maker.op)
                if row is None or row.kind != "pointwise_arith" or maker.key in seen or not self.free(maker):
                    continue
                seen.add(maker.key)
                waiting.append(maker)
                yield maker

    def _kind(self, op: Op, literal: float | None) -> str:
        row, name = ops.row(op.op), base(op)
        if literal is not None:
            return "PA104"
        if name in _ADDS and any(value in self.adapted or self.masklike(value) for value in self.inputs(op)):
            return "PA105"
        if name in _EXPONENTIALS or (name == "pow" and dict(op.attributes).get("self") is not None):
            return "PA103"
        if row is not None and row.kind == "reduction" and row.subclass in ("sum", "scan_sum", "mean"):
            return "PA112"
        return "PA101"

    def masklike(self, value: str) -> bool:
        """Far down and nothing between: elements near the low end, and a gap of six octaves to the others."""
        seen = self.context.ranges.get(value)
        if seen is None or seen.lowest > -self.limit / 64 or seen.highest > self.limit / 64:
            return False
        exponents = [exponent for exponent, _ in seen.histogram]
        return len(exponents) < 2 or exponents[-1] - exponents[-2] >= 6

    def _origin(self, rule: str, op: Op, value: str, pins: tuple[str, ...], literal: float | None = None) -> Origin:
        shielded = bool(op.values) and all(each in self.shielded for each in op.values)
        seen = self.context.ranges.get(value)
        lost = max((self.lost(each) for each in op.values), default=0)
        taken_back = absorbed(self, op, seen)
        of_mask = rule in ("PA104", "PA106") and taken_back
        mask = value if value not in op.values else op.values[0]
        ends = op.values if value in op.values else (value,)
        return Origin(
            rule,
            op,
            value,
            seen,
            pins,
            shielded,
            literal,
            lost,
            absorbed=taken_back,
            settled=of_mask and (settled(self, mask) or settled_by(self, op)),
            saturated=saturates(self.context, overflowed(self.context, ends, self.limit), self.far),
            harmless=harmless(self.context, op),
        )


def _scales(op: Op, value: str) -> bool:
    """Whether the op multiplies by the value, and does not merely add it."""
    row = ops.row(op.op)
    if base(op) in ("mul", "div"):
        return True
    added = ("bias", "attn_mask", "self" if base(op).startswith("add") or base(op) == "baddbmm" else "")
    gemm = row is not None and row.kind in _GEMMS
    return gemm and any(o.value == value and o.argument not in added for o in op.operands)


def of_rule(context: Context, code: str) -> Iterator[Origin]:
    """The origins that the rule `code` reports."""
    return (origin for origin in all_origins(context) if origin.rule == code)


def all_origins(context: Context) -> tuple[Origin, ...]:
    """All of a context; none in a format that has the captured one's range throughout."""
    if FORMATS.get(context.policy.low) is None or context.policy.low == context.policy.high:
        return ()
    if __name__ not in context.shared:
        context.shared[__name__] = tuple(Reach(context).origins())
    found: tuple[Origin, ...] = context.shared[__name__]
    return found
