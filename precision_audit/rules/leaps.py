"""Where an error leaps: the ops at which the low model parts from the captured one, and the cause of each.

Takes a context; gives one `Leap` per root cause, in graph order, each with the code of the one rule that tells it, so
that no two rules tell the same. A leap is an op whose result is off by more than the policy's tolerance while its
operands were not and its own rounding is small, or that loses elements by its operands' small errors. It counts only
if it survives: an output of the model that descends from it is off as well. Where all cancels by construction
(`x - x.mean()` of equal numbers) and nothing comes of it, there is no leap. What descends from a leap is no new one.
What begins with an overflow, an underflow or a constant out of range belongs to the rules about range and is passed
over, as is everything that descends from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from precision_audit import ops as op_table
from precision_audit.records import Beside, Evidence, Op, Severity
from precision_audit.rules import Context
from precision_audit.rules.causes import Cause, Causes, unique
from precision_audit.rules.upstream import STATE, Upstream
from precision_audit.verify.limits import limit

_GAIN = 4.0  # times the error of the operands: what a chain of harmless ops does not reach in one step
_TURNS = 8  # of a loop, from which on it is one
RUINED = 0.1  # relative error from which on a number is no use


@dataclass(frozen=True)
class Leap:
    """One cause. `op` is where it is told, `at` where the error appears; `error` is that op's relative L2, infinite
    where elements are lost, or the share of an integer result that changed; `output` the worst output it reaches."""

    code: str
    op: Op
    at: Op
    error: float
    output: float
    pins: tuple[str, ...]
    notes: Mapping[str, str] = field(default_factory=dict)  # what the rule needs for its message, by its own words

    @property
    def size(self) -> float:
        return min(self.error, self.output)


def leaps(context: Context, code: str) -> Iterator[Leap]:
    """The leaps that rule `code` tells."""
    if __name__ not in context.shared:
        context.shared[__name__] = tuple(_Search(context).run()) if at_stake(context) else ()
    return (leap for leap in context.shared[__name__] if leap.code == code)


def at_stake(context: Context) -> bool:
    """Whether the policy lets anything run low. Not a question to the decisions: they may rest on these very rules."""
    return context.policy.lowers


def tolerance(context: Context) -> float:
    """The relative L2 that the policy allows an output."""
    return limit(context.policy, "relative_l2", "") or 0.0


def severity(leap: Leap) -> Severity:
    """By how far an output is off that descends from it."""
    return "error" if leap.size >= RUINED else "warning"


def told(leap: Leap, context: Context) -> str:
    """The error in words."""
    where = base(leap.at.key)
    if any(context.beside[value].lost for value in leap.at.values if value in context.beside):
        return f"elements of {where} that were finite are NaN or infinite in {context.policy.low}"
    if leap.error == math.inf:
        return f"{where} fails or is nothing but error in {context.policy.low}"
    return f"{where} is {percent(leap.error)} off in {context.policy.low}"


def evidence(leap: Leap, context: Context, text: str = "") -> Evidence:
    """What the low model beside the captured one has shown, with the range of what the cause makes."""
    numbers = [("error", leap.error), ("output error", leap.output), ("tolerance", tolerance(context))]
    held = context.ranges.get(leap.op.values[0])
    if held is not None:
        numbers += [("amax", held.amax), ("batch", float(held.batch))]
    seen = "the model run in the low format beside the captured one, on the example"
    seen += ", what hid this kept high" if context.kept else ""
    finite = tuple((name, number) for name, number in numbers if math.isfinite(number))
    return Evidence("OBSERVED", f"{seen}{': ' if text else ''}{text}", finite)


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share <= 1 else f"{share:.2g} times its size"


def half_step(context: Context, magnitude: float) -> float:
    """How far a number of that magnitude may move when it is rounded to the low format."""
    return 2.0 ** (math.frexp(magnitude)[1] - 1) * (context.low.unit_roundoff or 0.0) if magnitude else 0.0


def base(key: str) -> str:
    """An op's key without the occurrence, as a person would name it."""
    return key.partition("#")[0].lstrip("/")


class _Search:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.upstream = Upstream(context)
        self.floor = tolerance(context)
        self.damage = self.upstream.damage(self.floor)
        self.tainted: set[str] = set()  # values whose error is told, or another rule's
        self.decided: dict[str, Op] = {}  # integer and bool values that changed → the op that decided
        self.causes = Causes(context, self.upstream)

    def run(self) -> Iterator[Leap]:
        found: dict[tuple[str, str], Leap] = {}
        if self.context.facts.beside:
            found.update(((leap.code, leap.op.key), leap) for leap in self._recurrences())
            for op in self.context.computed():
                for leap in self._judge(op):
                    key = (leap.code, leap.op.key)
                    found[key] = _merged(found[key], leap) if key in found else leap
        yield from found.values()

    def _judge(self, op: Op) -> Iterator[Leap]:
        seen = self.upstream.seen(op)
        misled = [self.decided[operand.value] for operand in op.operands if operand.value in self.decided]
        if any(operand.value in self.tainted for operand in op.operands):
            self._taint(op)
        elif seen is not None and seen.raised and misled:  # an index that lies outside: the low model stops here
            yield self._made(self.causes.decided(misled[0], op), op, math.inf, math.inf)
        elif seen is not None and self._own(op, seen):
            yield from self._accumulation(op, seen)
            self._taint(op)
        else:
            yield from self._decision(op)
            leap = None if seen is None else self._leap(op, seen)
            if leap is not None:
                yield leap
            if leap is not None or (seen is not None and seen.lost):
                self._taint(op)

    def _taint(self, op: Op) -> None:
        if any(self.upstream.wrong(value, self.floor) for value in op.values):
            self.tainted.update(self.upstream.shares(op))

    def _own(self, op: Op, seen: Beside) -> bool:
        """The op is off by itself: it loses elements, leaves the range, underflows, or its kernel sums badly."""
        ranges = (self.context.ranges[value] for value in op.values if value in self.context.ranges)
        if any(each.amax > self.context.low.max_finite for each in ranges):
            return True
        return seen.fresh_lost > 0 or (seen.fresh >= self.floor and seen.fresh > 0.5 * seen.drift)

    def _accumulation(self, op: Op, seen: Beside) -> Iterator[Leap]:
        """A kernel that is off by itself: it sums in the low format, or takes a number or a place that this format has
        too coarse. What is wrong by a tenth and more is PA304's."""
        output = self._output(op)
        if not output or seen.fresh_lost:
            return
        if sums_low(self.context, op):
            yield Leap("PA205", op, op, seen.fresh, output, (op.key,))
        elif self.floor <= seen.fresh < RUINED and self._in_range(op):
            cause = self.causes.of(op, False)
            if cause is not None:
                yield self._made(cause, op, seen.drift, output)

    def _in_range(self, op: Op) -> bool:
        """Whether the result neither leaves the low format's range nor lies below it as a whole."""
        seen = [self.context.ranges[value].amax for value in op.values if value in self.context.ranges]
        return all((self.context.low.min_normal or 0.0) <= each <= self.context.low.max_finite for each in seen)

    def _decision(self, op: Op) -> Iterator[Leap]:
        """A changed integer or bool that is an output; where floats come of it, see `_leap`."""
        outputs = set(self.context.graph.outputs)
        for value in op.values:
            seen = self.context.beside.get(value)
            if seen is None or not seen.changed:
                continue
            inherited = [self.decided[o.value] for o in op.operands if o.value in self.decided]
            self.decided[value] = inherited[0] if inherited else op
            if value in outputs:
                yield self._made(self.causes.decided(self.decided[value], op), op, seen.changed, seen.changed)

    def _leap(self, op: Op, seen: Beside) -> Leap | None:
        output = self._output(op)
        base = max(seen.drift_in, self.context.low.unit_roundoff or 0.0)
        grown = seen.drift >= self.floor and seen.drift >= _GAIN * base and seen.fresh <= 0.5 * seen.drift
        ranks = self.causes.only_ranks(op) and not seen.lost and not set(op.values) & set(self.context.graph.outputs)
        read = (self.context.ranges[o.value].amax for o in op.operands if o.value in self.context.ranges)
        if seen.lost and any(amax > self.context.low.max_finite for amax in read):
            return None  # of the range, however small the error was before
        if not output or not op.operands or ranks or not (grown or (seen.lost and seen.drift_in < self.floor)):
            return None
        size = math.inf if seen.lost else seen.drift
        decided = [self.decided[operand.value] for operand in op.operands if operand.value in self.decided]
        if decided:
            return self._made(self.causes.decided(decided[0], op), op, size, output)
        at = self.context.maker[self.upstream.origin(op.values[0])]
        cause = self.causes.of(at if at.kind not in STATE else op, seen.lost > 0)
        if cause is None:
            return None
        raised = self.upstream.seen(cause[1])
        moved = cause[0] in ("PA207", "PA208") and cause[1] is not at  # exp(a - b), told at the exponential
        if moved and raised is not None:
            at, size = cause[1], math.inf if raised.lost else raised.drift
        return self._made(cause, at, size, output)

    def _output(self, op: Op) -> float:
        return max((self.damage[value] for value in op.values), default=0.0)

    @staticmethod
    def _made(cause: Cause, at: Op, size: float, output: float) -> Leap:
        code, op, pins, notes = cause
        return Leap(code, op, at, size, output, unique(pins), notes)

    def _recurrences(self) -> Iterator[Leap]:
        """A line that runs again and again on its own result, and whose error grows from turn to turn without a product
        in between: no single turn leaps."""
        turns: dict[tuple[tuple[str, str, int], str], list[Op]] = {}
        for op in self.context.computed():
            if op.source is not None and self.upstream.seen(op) is not None and not self.upstream.is_product(op):
                turns.setdefault(((op.module, op.source.file, op.source.line), op.op), []).append(op)
        told: set[tuple[str, str, int]] = set()
        for (line, _), ops in turns.items():
            if len(ops) < _TURNS or line in told:
                continue
            first, last = self.upstream.seen(ops[0]), self.upstream.seen(ops[-1])
            assert first is not None and last is not None
            output = self._output(ops[-1])
            grown = last.drift >= max(self.floor, 8 * first.drift, 16 * (self.context.low.unit_roundoff or 0.0))
            if not output or not grown or first.drift >= self.floor:
                continue
            region = self.upstream.region(self.upstream.floats(ops[-1]))
            if ops[0].key in region.cheap:
                told.add(line)
                pins = unique((ops[-1].key, *region.nearest(products=False)))
                notes = {"turns": str(len(ops))}
                self.tainted.update(value for key in pins for value in self.upstream.ops[key].values)
                yield Leap("PA207", ops[0], ops[-1], last.drift, output, pins, notes)


def sums_low(context: Context, op: Op) -> bool:
    """Whether the op sums, as far as the table says."""
    row = op_table.row(op.op)
    return row is not None and row.arithmetic == "accumulating" and row.kind != "interp_grid"


def _merged(one: Leap, other: Leap) -> Leap:
    """Two appearances of one cause: sine and cosine of one angle."""
    pins = unique((*one.pins, *other.pins))
    return Leap(one.code, one.op, one.at, max(one.error, other.error), max(one.output, other.output), pins, one.notes)
