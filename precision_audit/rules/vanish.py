"""Numbers that vanish in the low format: shared by the rules about eps, logarithms and underflow (PA107 to PA110).

Takes a context; tells where a small number is written that rounds to zero, which singular op
it guards, a division, a root's inverse, a logarithm, and which cheap ops upstream make what it guards. An eps that
leads to no singular op guards nothing. A number that follows the example's format (`torch.finfo(x.dtype).eps`) is
adapted by the conversion and is no such number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.records import Op
from precision_audit.rules import Context
from precision_audit.rules.families import base
from precision_audit.rules.reach import Reach, adapts, numbers

GUARDED = frozenset({"cosine_similarity"})  # have an eps inside, held in the op's own format
LOGS = frozenset({"log", "log2", "log10", "xlogy", "special_xlogy", "special_entr", "logit", "special_logit"})
_INVERSES = frozenset({"rsqrt", "reciprocal"})
_DIVISIONS = frozenset({"div", "true_divide", "divide", "floor_divide", "remainder", "fmod", "addcdiv"})
_DENOMINATORS = ("other", "tensor2")
_GUARDS = frozenset({
    "add", "clamp", "clamp_min", "maximum", "max", "fmax", "where", "masked_fill", "hypot", "threshold",
})  # fmt: skip
# Ops through which a number that is zero stays zero: what guards their operand guards their result.
_THROUGH = frozenset({
    "sqrt", "abs", "square", "neg", "clamp", "clamp_min", "clamp_max", "relu", "sum", "mean", "amax",
})  # fmt: skip
# Ops that make small numbers out of larger ones.
_MAKERS = frozenset({
    "pow", "square", "mul", "sum", "mean", "var", "std", "norm", "linalg_vector_norm", "linalg_norm",
    "frobenius_norm", "sub", "rsub", "abs", "sqrt", "div", "true_divide", "exp", "exp2", "expm1", "softmax",
    "log_softmax", "sigmoid", "special_expit", "tanh", "prod", "add", "neg", "var_mean", "std_mean", "cumprod",
    "clamp", "clamp_min", "clamp_max", "where", "maximum", "minimum", "max", "min", "amax", "rsqrt",
    "reciprocal", "masked_fill", "dot", "linalg_vecdot", "cosine_similarity", "erfc", "addcmul", "hypot",
    "log1p", "softplus", "lerp", "dist", "cdist", "log", "log2", "log10",
})  # fmt: skip
STEPS = 8


@dataclass(frozen=True, slots=True)
class Site:
    """A small number that vanishes: where it is written, what it guards, the singular op and the ops between."""

    op: Op
    number: float
    guarded: str
    singular: Op
    between: tuple[Op, ...]
    written: tuple[Op, ...] = ()  # ops that make the number, where it is a tensor


class Vanish:
    """Look-ups over one graph for one low format."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.reach = Reach(context)
        self.zero_at = (context.low.min_subnormal or 0.0) / 2  # rounds to even: to zero

    # -- eps below the smallest subnormal ------------------------------------------------------------------------

    def sites(self) -> Iterator[Site]:
        """Every eps that rounds to zero and guards a singular op, in graph order, one per eps and singular op."""
        for op in self.context.graph.ops:
            if base(op) not in _GUARDS or not self.reach.free(op):
                continue
            for number, guarded, written in self._small(op):
                for singular, between in self.singular(op):
                    yield Site(op, number, guarded, singular, between, written)
                break

    def guarded(self) -> frozenset[str]:
        """Keys of singular ops that a vanishing number guards: what comes of them is told with that number."""
        from precision_audit.rules.near_one import next_to_one  # which reads this file

        return frozenset(site.singular.key for sites in (self.sites(), next_to_one(self)) for site in sites)

    def _small(self, op: Op) -> Iterator[tuple[float, str, tuple[Op, ...]]]:
        operands = [o.value for o in op.operands if o.argument not in ("condition", "mask")]
        tiny = [value for value in operands if self._tiny(value)]
        guarded = next((value for value in operands if value not in tiny), "")
        for name, number in numbers(op):
            if 0 < number <= self.zero_at and not adapts(op, number) and name not in ("max", "max_val"):
                yield number, guarded, ()
        for value in tiny:
            yield self.context.ranges[value].amax, guarded, self.upstream(value, anything=True)

    def _tiny(self, value: str) -> bool:
        """A constant or a buffer that holds nothing but such a number."""
        seen = self.context.ranges.get(value)
        if seen is None or not (0 < seen.amax <= self.zero_at and seen.zeros == 0 and seen.lowest > 0):
            return False
        maker = self.context.maker[value]
        row = ops.row(maker.op)
        return seen.basis == "PROVED" or (row is not None and row.kind == "factory")

    def singular(self, op: Op) -> Iterator[tuple[Op, tuple[Op, ...]]]:
        """Singular ops that read what `op` makes, with the ops between, through ops that keep a zero zero."""
        waiting: list[tuple[Op, tuple[Op, ...]]] = [(op, ())]
        seen = {op.key}
        while waiting:
            at, between = waiting.pop(0)
            for value in at.values:
                for reader in self.context.readers.get(value, ()):
                    if self.is_singular(reader, value):
                        yield reader, between
                    elif reader.key not in seen and len(between) < STEPS and _keeps_zero(reader, value):
                        seen.add(reader.key)
                        waiting.append((reader, (*between, reader)))

    def is_singular(self, op: Op, value: str) -> bool:
        """Whether the op has no finite value where `value` is zero."""
        name = base(op)
        if name in LOGS or name in _INVERSES:
            return not name.endswith("xlogy") or any(o.value == value and o.argument == "other" for o in op.operands)
        if name in _DIVISIONS:
            return any(o.value == value and o.argument in _DENOMINATORS for o in op.operands)
        exponent = dict(op.attributes).get("exponent")
        return name in ("pow", "float_power") and isinstance(exponent, int | float) and exponent < 0

    def can_be_zero(self, value: str) -> bool | None:
        """Whether the value was seen at zero, or so small that the low format makes it zero; None if never seen."""
        seen = self.context.ranges.get(value)
        if seen is None:
            return None
        return seen.zeros > 0 or 0 < seen.smallest <= self.zero_at

    def zero_vector(self, op: Op) -> bool:
        """Whether the op could run low and its operands are small enough for their squares to stay in range."""
        seen = [self.context.ranges[value] for value in self.reach.inputs(op) if value in self.context.ranges]
        return self.reach.free(op) and all(each.amax * each.amax * 4 < self.context.low.max_finite for each in seen)

    # -- what was lost, and who made it --------------------------------------------------------------------------

    def lost_first(self, op: Op) -> int:
        """Elements that the low model loses at this op while it has all that the op reads."""
        beside = self.context.beside
        lost = max((beside[value].lost for value in op.values if value in beside), default=0)
        before = any(beside[o.value].lost for o in op.operands if o.value in beside)
        return 0 if before or any(self.reach.far(o.value) for o in op.operands) else lost

    def upstream(self, value: str, anything: bool = False) -> tuple[Op, ...]:
        """The cheap ops that make the value out of larger numbers, back to a norm, an input or a product, but for one
        that makes small numbers itself; `anything` that computes counts where the value is a constant."""
        found: dict[str, Op] = {}
        waiting = [(value, 0)]
        while waiting:
            at, depth = waiting.pop(0)
            op = self.context.maker.get(at)
            if op is None or op.key in found or depth >= STEPS:
                continue
            row = ops.row(op.op)
            moves = row is not None and row.kind in ("view_layout", "cast", "gather_index")
            small = row is not None and row.kind == "matmul" and self._has_small(at)
            if base(op) not in _MAKERS and not moves and not small and not anything:
                continue
            found[op.key] = op
            waiting.extend((v, depth + 1) for v in self.reach.inputs(op) if is_float(self.context.tensors[v].format))
        return tuple(found.values())

    def underflowed(self, value: str) -> Op | None:
        """The first op upstream of the value whose result has elements that the low format makes zero."""
        makers = {op.key: op for op in self.upstream(value)}
        for op in self.context.graph.ops:
            seen = [self.context.ranges[v] for v in op.values if v in self.context.ranges]
            if op.key in makers and any(0 < each.smallest <= self.zero_at for each in seen):
                return op
        return None

    def readers_of_small(self, op: Op) -> tuple[Op, ...]:
        """What reads the op's result, and so on as long as the numbers stay below the format's normal ones."""
        found: dict[str, Op] = {}
        waiting = list(op.values)
        while waiting:
            for reader in self.context.readers.get(waiting.pop(), ()):
                if reader.key in found:
                    continue
                found[reader.key] = reader
                waiting.extend(value for value in reader.values if self._is_small(value))
        return tuple(found.values())

    def makers_of_small(self, op: Op) -> tuple[Op, ...]:
        """What makes the op's operands, and so on back as long as some of the numbers are below the normal ones: beside
        large elements an error of the small ones does not show, and what is zero once stays so."""
        found: dict[str, Op] = {}
        waiting = [operand.value for operand in op.operands]
        while waiting:
            value = waiting.pop()
            seen, maker = self.context.ranges.get(value), self.context.maker.get(value)
            if seen is None or maker is None or maker.key in found or not self.reach.free(maker):
                continue
            if 0 < seen.smallest <= (self.context.low.min_normal or 0.0):
                found[maker.key] = maker
                waiting.extend(operand.value for operand in maker.operands)
        return tuple(found.values())

    def _has_small(self, value: str) -> bool:
        """Whether some of its elements lie below the low format's normal numbers."""
        seen = self.context.ranges.get(value)
        return seen is not None and 0 < seen.smallest <= (self.context.low.min_normal or 0.0)

    def _is_small(self, value: str) -> bool:
        """Whether the value lies below the low format's normal numbers as a whole."""
        seen = self.context.ranges.get(value)
        return seen is not None and 0 < seen.amax <= (self.context.low.min_normal or 0.0)

    def compared(self, op: Op) -> Iterator[Op]:
        """What makes the numbers by which a guard chooses, `x.abs() < 1e-8`: a threshold vanishes as an eps does."""
        waiting = [operand.value for operand in op.operands if operand.argument in ("condition", "mask")]
        seen: set[str] = set()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if is_float(self.context.tensors[value].format):
                yield from self.upstream(value)
            else:
                waiting.extend(operand.value for operand in self.context.maker[value].operands)

    def pins_of(self, *sites: Site) -> tuple[str, ...]:
        """What makes the guarded number and its guard, up to the singular op, and what reads infinity after it."""
        pinned: set[str] = set()
        for site in sites:
            far = tuple(value for value in site.singular.values if self.reach.far(value))
            pinned.update(self.reach.pins(far))
            around = (site.op, *site.written, *site.between, site.singular, *self.compared(site.op))
            pinned.update(self.pins(self.upstream(site.guarded), around))
        return tuple(op.key for op in self.context.graph.ops if op.key in pinned)

    def pins(self, *groups: tuple[Op, ...]) -> tuple[str, ...]:
        """Keys of those ops that could run low, in graph order, and of whatever else reads the small numbers they read:
        a value rounded away for one reader must not be for another. A view at the far end moves rounded numbers
        anyway."""
        chosen = {op.key: op for group in groups for op in group}
        for op in list(chosen.values()):
            for operand in op.operands:
                maker = self.context.maker.get(operand.value)
                if maker is not None and self._is_small(operand.value):
                    chosen.update((reader.key, reader) for reader in self.readers_of_small(maker))
        wanted = {key for key, op in chosen.items() if self.reach.free(op)}
        return tuple(op.key for op in self.context.graph.ops if op.key in wanted)

    def shielded(self, op: Op) -> bool:
        return all(value in self.reach.shielded for value in op.values)


def _keeps_zero(op: Op, value: str) -> bool:
    row, name = ops.row(op.op), base(op)
    if row is not None and row.kind in ("view_layout", "cast", "gather_index", "concat"):
        return True
    if name == "pow":
        exponent = dict(op.attributes).get("exponent")
        return isinstance(exponent, int | float) and exponent > 0
    if name in ("mul", "div", "true_divide"):  # the numerator of a division, a factor
        return not any(o.value == value and o.argument in _DENOMINATORS for o in op.operands) or name == "mul"
    if name in ("add", "clamp_min", "clamp") and any(abs(n) > 0 for _, n in numbers(op)):
        return name == "clamp" and dict(op.attributes).get("min") is None
    return name in _THROUGH
