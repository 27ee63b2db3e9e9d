"""Which kind of cause an error has that leaps at an op, and which ops must run high so that it does not.

Takes a context, the walks of `upstream` and the op at which the low model parts from the captured one; gives the code
of the rule that tells it, the op to name, the ops to pin and words for the message, or nothing where the cause belongs
to another family. Reads records only. The order of the questions is the order of trust: what is written into the code
(whole numbers, constants) before what the shape of the arithmetic suggests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property

import torch

from precision_audit import ops as op_table
from precision_audit.formats import dtype_of
from precision_audit.records import Op
from precision_audit.rules import Context
from precision_audit.rules.families import (
    ANGLES,
    CASTS,
    CENTRED,
    DIFFERENCES,
    DIVISIONS,
    EXPONENTIALS,
    JUMPS,
    LOGARITHMS,
    LOOKUPS,
    POLES,
    RANKS,
    ROOTS,
    SAMPLERS,
    SQUASHERS,
    STEPS,
)
from precision_audit.rules.near_one import next_to_one
from precision_audit.rules.upstream import MOVES, STATE, Region, Upstream
from precision_audit.rules.vanish import Vanish
from precision_audit.verify.limits import limit

Cause = tuple[str, Op, list[str], Mapping[str, str]]

_SCALES = frozenset({"mul", "div", "neg", "add", "clamp", "clamp_min"})
_COORDINATES = frozenset({"linspace", "affine_grid_generator", "meshgrid"})
_INHERITED = 0.3  # of the error of scores, what comes in with the operands of the product that makes them
_MAGNITUDES = frozenset({"loss", "softmax", "fft_linalg", "attention", "rnn", "transcendental_expanding"})


class Causes:
    def __init__(self, context: Context, upstream: Upstream) -> None:
        self.context, self.upstream = context, upstream

    def only_ranks(self, op: Op) -> bool:
        """Whether nothing but decisions reads a function that keeps the order: what it amplifies does not matter."""
        readers = [reader for value in op.values for reader in self.context.readers.get(value, ())]
        return op.op in SQUASHERS | EXPONENTIALS | {"log_softmax", "_log_softmax"} and all(
            reader.op in RANKS for reader in readers
        )

    def of(self, at: Op, lost: bool) -> Cause | None:
        """The cause of a leap at `at`; `lost`: elements are no longer finite."""
        if at.op in ANGLES:
            return self.of_angle(at)
        critical = self._critical(at)
        region = self.upstream.region(critical, through=True)
        whole = self._whole(region)
        if whole is not None:
            rest = region.nearest() if at.op in DIFFERENCES else []  # which leaves the rounding of either operand
            return "PA201", whole, [*self._between(whole, region, at), *rest], {}
        if self.written(region):
            return None
        return self._saturated(at, region) or self._stored(at, region) or self._by_arithmetic(at, region, lost)

    def decided(self, decider: Op, at: Op) -> Cause:
        """The cause of a decision by `decider` that changed and that shows at `at`."""
        region = self.upstream.region(self.upstream.floats(decider), kept=False)
        cast = decider if decider.op in CASTS else None
        if cast is not None:  # x.floor().long() is decided by the floor
            decider = next((op for op in self._ops(region) if op.op in STEPS and region.cheap[op.key] <= 2), decider)
        pins = [*region.nearest(), decider.key]
        whole = self._whole(region)
        if whole is not None:
            told = at if cast is not None and at.op in LOOKUPS else whole
            return "PA201", told, pins, {"cast": _line(cast)}
        if self._coordinates(region) and not region.products:
            return "PA203", decider, pins, {}
        crowded = next((op for op in self._ops(region) if self._crowds(op)), None)
        pins = pins if crowded or self._rare(at) else [*pins, *self._behind(region, decider)]
        notes = {"decider": decider.op, "crowded": crowded.op if crowded else ""}
        return "PA206", crowded or decider, pins, notes

    def _behind(self, region: Region, decider: Op) -> list[str]:
        """What leads up to the products that make the scores, where a good part of the scores' error comes in with what
        those read: with these alone high they would still be decided otherwise. Nothing where that is most of the
        model's work; then it is what the format costs."""
        products = [self.upstream.ops[key] for key in region.products]
        off = max((self._error(value) for value in self.upstream.floats(decider)), default=0.0)
        if not any(self._brought(op) > _INHERITED * off for op in products):
            return []
        found: dict[str, Op] = {}
        queue = [operand.value for op in products for operand in op.operands]
        for value in queue:
            op = self.context.maker[value]
            if op.kind not in STATE and op.key not in found:
                found[op.key] = op
                queue.extend(operand.value for operand in op.operands)
        behind, whole = self._work([*found.values(), *products]), self._work(self.context.computed())
        return list(found) if behind <= whole / 2 else []

    def _rare(self, at: Op) -> bool:
        """Whether next to none of the choices themselves change: near ties there are always some."""
        changed = [self.context.beside[value].changed for value in at.values if value in self.context.beside]
        return bool(changed) and not any(self.upstream.is_float(value) for value in at.values) and max(changed) < 0.01

    def _error(self, value: str) -> float:
        """Root mean square of how far the value is off in the low model."""
        seen, held = self.context.beside.get(value), self.context.ranges.get(value)
        if seen is None or held is None or not held.count:
            return 0.0
        squares = sum(number * (1.5 * 2.0**exponent) ** 2 for exponent, number in held.histogram)
        return seen.drift * math.sqrt(squares / held.count)

    def _brought(self, op: Op) -> float:
        """Of a product's error, what comes in with its operands."""
        seen = self.context.beside.get(op.values[0])
        part = min(1.0, seen.drift_in / seen.drift) if seen is not None and seen.drift else 0.0
        return part * self._error(op.values[0])

    def _work(self, ops: Iterable[Op]) -> int:
        return sum(op_table.flops(op, [self.context.tensors[each.value] for each in op.operands]) for op in ops)

    def of_angle(self, at: Op) -> Cause:
        """The cause of an error at a sine or cosine, told where its angle is made."""
        angle = self.context.operand(at, "angle")
        values = [angle] if angle else self.upstream.floats(at)
        region = self.upstream.region(values)
        maker = self.context.maker[self.upstream.origin(values[0])]
        told = at if maker.kind in STATE else maker
        given = any(self._holds(key) for key in region.state if self.upstream.ops[key].kind == "input")
        code = "PA201" if given or self._whole(region) is not None else "PA202"
        return code, told, [*region.nearest(), at.key], {"angle": maker.key, "function": at.op}

    def _saturated(self, at: Op, region: Region) -> Cause | None:
        """A logarithm of a squashed number that rounds to one."""
        if at.op not in LOGARITHMS and not at.op.startswith("binary_cross_entropy"):
            return None
        for op in self._ops(region):
            if op.op in SQUASHERS and self.rounds_to_one(op):
                return "PA208", at, self._between(op, region, at), {"squasher": op.key, "function": op.op}
        return None

    def _stored(self, at: Op, region: Region) -> Cause | None:
        """What is off comes from weights and constants alone: a table, a schedule."""
        kinds = {self.upstream.ops[key].kind for key in region.state}
        steps = at.op in JUMPS or any(op.op in STEPS for op in (at, *self._ops(region)))
        if region.products or not (region.cheap or kinds) or "input" in kinds or len(region.state) > 4:
            return None
        if steps or at.op in SAMPLERS:
            return None
        return "PA209", at, [*region.nearest(), at.key], {"stored": ", ".join(sorted(region.state)) or "constants"}

    def _by_arithmetic(self, at: Op, region: Region, lost: bool) -> Cause | None:
        pins = [*region.nearest(), at.key]
        near = [op for op in self._ops(region) if region.cheap.get(op.key, 9) <= 4]
        step = at if at.op in JUMPS else next((op for op in (at, *near) if op.op in STEPS), None)
        if at.op in SAMPLERS or (self._coordinates(region) and (step or not region.products)):
            return "PA203", at, pins, {}
        if step is not None:
            return "PA206", step, pins, {"decider": step.op, "crowded": ""}
        differs = next((op for op in self._ops(region) if op.op in DIFFERENCES), None)
        if at.op in DIFFERENCES or at.op in CENTRED or self.upstream.is_product(at):
            raised = self._reader(at, LOGARITHMS)
            squashed = [op for op in self._ops(region) if op.op in SQUASHERS and self.rounds_to_one(op)]
            if raised is not None and squashed:
                between = [*self._between(squashed[0], region, at), raised.key]
                return "PA208", raised, between, {"squasher": squashed[0].key, "function": squashed[0].op}
            raised = self._reader(at, EXPONENTIALS)
            return ("PA204", at, pins, {}) if raised is None else ("PA207", raised, [*pins, raised.key], {})
        if at.op in ROOTS | LOGARITHMS and differs is not None:
            return "PA204", at, pins, {"difference": _line(differs)}
        if lost and differs is None and at.op not in POLES:
            return None  # a zero or an infinity from elsewhere: of the range, not of the accuracy
        if at.op in EXPONENTIALS | DIVISIONS | POLES | LOGARITHMS | ROOTS or at.kind in _MAGNITUDES:
            return "PA207", at, pins, {"difference": _line(differs) if differs else ""}
        return ("PA204", differs, pins, {}) if differs is not None else None

    def _reader(self, at: Op, functions: frozenset[str]) -> Op | None:
        """The one of some functions that alone reads a difference: exp(a - b), log(1 - p)."""
        queue, found = list(at.values), None
        for value in queue:
            for reader in self.context.readers.get(value, ()):
                if reader.kind in MOVES or reader.op in _SCALES:
                    queue.extend(reader.values)
                elif reader.op in functions:
                    found = found or reader
                else:
                    return None
        return found

    def _critical(self, at: Op) -> list[str]:
        """The operands whose small errors become large ones: a denominator that is a difference, else all."""
        values = self.upstream.floats(at)
        below = self.context.operand(at, "other")
        if at.op in DIVISIONS and below in values:
            region = self.upstream.region([below])
            if any(op.op in DIFFERENCES for op in self._ops(region)):
                return [below]
        return values

    def _between(self, begins: Op, region: Region, at: Op) -> list[str]:
        """From the cause to where it shows, with what makes the cause."""
        path = self.upstream.descends(begins.values, region.nearest())
        makers = self.upstream.region(self.upstream.floats(begins))
        ordered = [key for key in region.nearest() if key in path]
        return [at.key, *ordered, begins.key, *makers.nearest(products=False)]

    def _ops(self, region: Region) -> list[Op]:
        return [self.upstream.ops[key] for key in region.nearest(products=False)]

    def _coordinates(self, region: Region) -> bool:
        return any(op.op in _COORDINATES for op in self._ops(region))

    def _whole(self, region: Region) -> Op | None:
        """The first op, in graph order, that makes whole numbers which the low format does not hold."""
        made = (op for op in self._ops(region) if self.whole(op) and op.op not in STEPS)
        keys = {op.key for op in made if op.kind != "reduction" or op.op == "cumsum"}
        return next((op for op in self.context.graph.ops if op.key in keys), None)

    def whole(self, op: Op) -> bool:
        """Whether it makes whole numbers that the low format rounds to others."""
        most = self.context.low.consecutive or 0
        if any(self._counts_to(operand.value) > most for operand in op.operands):
            return True
        return op.kind not in STATE and op.key not in self._filling and any(self._holds(value) for value in op.values)

    def _holds(self, value: str) -> bool:
        """Whether the value is whole numbers that the low format rounds."""
        held, low = self.context.ranges.get(value), self.context.low
        if held is None or not held.whole or not (low.consecutive or 0) < held.amax <= low.max_finite:
            return False
        return self._rounded(value, held.highest)

    def carried(self, op: Op) -> Op | None:
        """Where ids are looked up that `op` makes integers of, straight from a float input or buffer: whoever casts the
        model and its inputs changes them, although no op of the model would. None where there is no such thing."""
        if op.op not in CASTS or len(op.operands) != 1 or self.upstream.is_float(op.values[0]):
            return None
        source = self.context.maker[self.upstream.origin(op.operands[0].value)]
        if source.kind not in STATE or not self._holds(source.key):
            return None
        queue = list(op.values)
        for value in queue:
            for reader in self.context.readers.get(value, ()):
                if reader.op in LOOKUPS:
                    return reader
                if reader.kind in MOVES:
                    queue.extend(reader.values)
        return op

    def _counts_to(self, value: str) -> float:
        """The end of a range of integers that a float op reads as they are: positions times frequencies."""
        maker = self.context.maker[value]
        while maker.kind in MOVES and maker.operands and not self.upstream.is_float(value):
            value = maker.operands[0].value
            maker = self.context.maker[value]
        end = dict(maker.attributes).get("end") if maker.op == "arange" else None
        return float(end) if isinstance(end, int) and not self.upstream.is_float(value) else 0.0

    def _rounded(self, value: str, highest: float) -> bool:
        seen = self.context.beside.get(value)
        read = any(self._drift_in(reader) > 0 for reader in self.context.readers.get(value, ()))
        return bool(seen and seen.drift > 0) or read or self.low(highest) != highest

    def _drift_in(self, op: Op) -> float:
        return max((self.context.beside[v].drift_in for v in op.values if v in self.context.beside), default=0.0)

    @cached_property
    def _filling(self) -> frozenset[str]:
        """Masks and fills hold whole numbers that nobody counts with."""
        kinds = {op.key for op in self.context.graph.ops if op.kind == "scatter_write"}
        return frozenset(kinds | {op.key for op in self.context.graph.ops if op.op in ("full", "where", "full_like")})

    def low(self, number: float) -> float:
        """`number` as the low format holds it."""
        return float(torch.tensor(number, dtype=torch.float64).to(dtype_of(self.context.policy.low)))

    def rounds_to_one(self, op: Op) -> bool:
        """Whether what lies below one (or above minus one) comes within a step of it in the low format."""
        step = 2 * (self.context.low.unit_roundoff or 0.0)
        extremes = [self.context.ranges[value] for value in op.values if value in self.context.ranges]
        return any(max(abs(held.highest), abs(held.lowest)) > 1 - step for held in extremes)

    def _crowds(self, op: Op) -> bool:
        """Whether scores come closer together by the op than their own rounding had them: near one, where a squashed
        score moves by 1 - s for each unit of its argument z, a step of the format hides 1 / (1 - s) steps of it."""
        if op.op not in SQUASHERS - {"softmax", "_softmax"}:
            return False
        inside = self.context.ranges.get(self.upstream.floats(op)[0])
        outside = self.context.ranges.get(op.values[0])
        if inside is None or outside is None or outside.highest > 1:
            return False
        return 8 * max(inside.amax, 1.0) * (1 - outside.highest) < 1

    def written(self, region: Region) -> bool:
        """Whether a number is written into the region that vanishes in the low format or there becomes one, and that
        guards a singular op, which is wrong: an eps. A decay of 0.9995 guards nothing."""
        return not self._guards.isdisjoint(region.cheap)

    @cached_property
    def _guards(self) -> frozenset[str]:
        vanish, floor = Vanish(self.context), limit(self.context.policy, "relative_l2", "") or 0.0
        return frozenset(
            site.op.key
            for sites in (vanish.sites(), next_to_one(vanish))
            for site in sites
            if any(self.upstream.wrong(value, floor) for value in site.singular.values)
        )


def _line(op: Op | None) -> str:
    """Where the user wrote it, for a message."""
    return "" if op is None or op.source is None else op.source.text.strip()


def unique(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(keys))
