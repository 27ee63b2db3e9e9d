"""Plan: the cheapest formats and casts that policy and facts allow, exactly.

Takes the graph, decisions with swaps, the policy and the device; gives the `Plan`, and `settle` writes its choices back
into the decisions. The optimum is one of the charged model: seconds of ops (roofline) and of casts, each tensor cast
once per direction for all its readers, plus λ times error shares. It is found by one minimum cut (`cut.py`); dropping
casts that promotion makes superfluous comes after. A second cut asks for the residual streams high (`streams.py`). The
cheaper of the two is taken, or where the prediction cannot tell them apart the one that casts less. Never touches the
graph or measures.

The stages, one module each: who reads what (`reading.py`), who may choose (`labelling.py`), what it costs
(`charging.py`), the cut, and the casts that the result needs (`placing.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_audit import ops, recipes
from precision_audit.cost import roofline
from precision_audit.cost import swapped as swap_cost
from precision_audit.formats import is_float
from precision_audit.plan.charging import Charged, Prices, charge
from precision_audit.plan.choosing import NO_CHOICES, Choices, Source, demanded, picked
from precision_audit.plan.cut import solve
from precision_audit.plan.digest import digest
from precision_audit.plan.labelling import CAPTURED, Labels, labels
from precision_audit.plan.labelling import HIGH as ASKS_HIGH
from precision_audit.plan.placing import made_format, place
from precision_audit.plan.reading import Readings, alike, readings
from precision_audit.plan.streams import high_streams
from precision_audit.records import (
    Cast,
    Decision,
    Fold,
    Graph,
    Hardware,
    Plan,
    Policy,
    Predicted,
    Refusal,
    Swap,
    Tensor,
)

if TYPE_CHECKING:
    from precision_audit.decide import Decided


def plan(
    graph: Graph,
    decided: Decided,
    policy: Policy,
    hardware: Hardware,
    *,
    lam: float = 0.0,
    error_shares: Mapping[Source, float] | None = None,
    choices: Choices = NO_CHOICES,
) -> Plan:
    """The cheapest plan. `error_shares` holds the expected squared relative error of a source: an op's key when it
    runs low, `cast:` and a value when that value is read low, the two together with a reader's key when that reader
    does; `lam` is what a unit of it is worth in seconds. `choices` are what a search may choose beside formats."""
    seconds = _Seconds(graph, policy, hardware, lam, error_shares or {})
    chosen = picked(graph, policy, choices, lam, seconds.op, seconds.shares)
    seconds.take(chosen, choices)
    reads, asked, swaps, refusals = _asked(
        graph, demanded(decided.decisions, choices, policy), policy, hardware.kernels,
        swaps=[*decided.swaps, *chosen], same=seconds.same, together=choices.together,
    )  # fmt: skip
    refusals = [refusal for refusal in refusals if refusal.op not in choices.swaps]
    seconds.swaps = {key: swap for swap in swaps for key in swap.linears}
    questions = (asked, high_streams(reads, asked, policy, seconds.op))
    found = [_solved(reads, each, policy, seconds) for each in questions if each]
    runs, casts, folds, predicted = _cheapest(found, seconds, lam)
    if chosen:  # one that the cut left high is none
        high = {op.key for op, each in zip(graph.ops, runs, strict=True) if each == policy.high}
        swaps = [swap for swap in swaps if swap.op not in high]
    return Plan(
        policy=policy.name,
        mode=graph.mode,
        high=policy.high,
        low=policy.low,
        formats=_formats(graph, runs, folds, policy),
        casts=tuple(casts),
        folds=tuple(folds),
        swaps=tuple(swaps),
        refusals=(*decided.refusals, *refusals),
        environment=policy.environment,
        predicted=predicted,
        graph_digest=digest(graph),
    )


def settle(decisions: Iterable[Decision], made: Plan) -> tuple[Decision, ...]:
    """Decisions with the plan's choice and its reason where they waited for one or could not be kept."""
    formats, swapped = dict(made.formats), {key: swap for swap in made.swaps for key in swap.ops}
    refused = {refusal.op: refusal for refusal in made.refusals}
    fed = {key for cast in made.casts for key in cast.consumers}
    return tuple(
        _settled(each, formats.get(each.op, ""), refused.get(each.op), each.op in fed, made)
        if each.op not in swapped
        else _swapped_by(each, swapped[each.op])
        for each in decisions
    )


def _swapped_by(decision: Decision, swap: Swap) -> Decision:
    """Of a plan that was given, the policy need not have asked for the swap."""
    if decision.swapped or decision.op not in swap.linears:
        return decision
    runs = f"{recipes.arithmetic(swap.backend, swap.recipe)} {swap.recipe}"
    return replace(decision, chosen=runs, reason=f"plan: swapped by {swap.backend}")


def _settled(decision: Decision, runs: str, refusal: Refusal | None, fed: bool, made: Plan) -> Decision:
    asked = decision.chosen
    if decision.swapped:
        why = f"backend {refusal.backend}: {refusal.reason}" if refusal else "the plan has no swap"
        return replace(decision, chosen=runs or made.low, reason=f"{why}; {decision.reason}")
    if not runs or runs == asked:
        return decision
    if asked:
        reason = f"plan: shares memory or is read as captured, so it stays {runs} ({decision.reason} asked for {asked})"
    elif fed:
        reason = f"plan: {runs} saves more than the cast of its input costs"
    else:
        reason = "plan: a cast would cost more"
    return replace(decision, chosen=runs, reason=reason)


def _asked(
    graph: Graph,
    decisions: Sequence[Decision],
    policy: Policy,
    kernels: str,
    *,
    swaps: Sequence[Swap],
    same: Sequence[int],
    together: Sequence[Sequence[str]] = (),
) -> tuple[Readings, Labels, list[Swap], list[Refusal]]:
    """Readings and labels; a swap that shared memory forbids is taken out and everything asked once more."""
    refusals: list[Refusal] = []
    while True:
        reads = readings(graph, kernels, swaps, same)
        asked = labels(reads, decisions, policy, swaps, together)
        if not asked.refusals:
            return reads, asked, list(swaps), refusals
        refusals.extend(asked.refusals)
        refused = {refusal.op for refusal in asked.refusals}
        swaps = [swap for swap in swaps if swap.op not in refused]


_Solved = tuple[list[str], list[Cast], list[Fold], Predicted]

# Shares of the predicted time below which two plans take the same time: the prediction is right to some per cent.
_SAME = 5e-3


def _cheapest(found: Sequence[_Solved], seconds: _Seconds, lam: float) -> _Solved:
    """Of plans that take the same time, the one that moves the fewest bytes in casts. With a weight on the error the
    sum of both decides alone, as a search's hull needs."""
    cost = {id(each): each[3].seconds + lam * each[3].error_share for each in found}
    least = min(cost.values())
    if lam:
        return min(found, key=lambda each: cost[id(each)])
    same = [each for each in found if cost[id(each)] <= least * (1 + _SAME)]
    return min(same, key=lambda each: (each[3].cast_bytes + seconds.widened(each[0]), cost[id(each)]))


def _solved(reads: Readings, asked: Labels, policy: Policy, seconds: _Seconds) -> _Solved:
    runs = _runs(asked, charge(reads, asked, policy, seconds.prices()), policy)
    casts, folds = place(reads, asked, runs, policy)
    return runs, casts, folds, seconds.predicted(reads, runs, casts, folds)


def _runs(asked: Labels, charged: Charged, policy: Policy) -> list[str]:
    """What each op runs in: a format's name, or CAPTURED."""
    low = solve(charged.problem).tolist()
    runs = [policy.high if demand == ASKS_HIGH else demand for demand in asked.demand]
    for position, vertex in charged.vertex.items():
        runs[position] = policy.low if low[vertex] else policy.high
    return runs


def _formats(graph: Graph, runs: Sequence[str], folds: Iterable[Fold], policy: Policy) -> tuple[tuple[str, str], ...]:
    """Format of the float outputs of every op that has some. A folded parameter has the format it is stored in."""
    stored = {fold.value: fold.to for fold in folds if not fold.copy}
    found = []
    for op, each in zip(graph.ops, runs, strict=True):
        floats = [tensor.format for tensor in op.outputs if is_float(tensor.format)]
        if not floats:
            continue
        is_state = op.kind in ("parameter", "buffer", "constant")
        changed = each != CAPTURED and policy.high in floats and not is_state
        captured = policy.high if policy.high in floats else floats[0]
        found.append((op.key, stored.get(op.key, captured) if not changed else each))
    return tuple(found)


class _Seconds:
    """Prices of one graph on one device, each computed once."""

    def __init__(
        self, graph: Graph, policy: Policy, hardware: Hardware, lam: float, shares: Mapping[Source, float]
    ) -> None:
        self._graph, self._policy, self._hardware, self._lam = graph, policy, hardware, lam
        self.shares = dict(shares)
        self._priced: dict[str, float] = {}  # of swaps that a search has chosen
        self._tensors: dict[str, Tensor] = {
            value: tensor for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)
        }
        self._compute = roofline.compute_format(policy)
        self.same = alike(graph)
        self.swaps: Mapping[str, Swap] = {}
        self._known: dict[tuple[int, str], float] = {}  # by the number of ops that are alike

    def take(self, chosen: Iterable[Swap], choices: Choices) -> None:
        """Price the swaps that were chosen; what such an op adds to the error is its product's."""
        for swap in chosen:
            self._priced[swap.op] = choices.seconds[swap.op, swap.recipe]
            self.shares[swap.op] = choices.shares.get((swap.op, swap.recipe), 0.0)

    def prices(self) -> Prices:
        lam, shares = self._lam, self.shares

        def read(value: str, reader: str) -> float:
            return lam * shares.get((f"cast:{value}", reader), 0.0)

        weighed = read if lam and shares else None
        return Prices(self.op, self._cast, self._copy, lambda source: lam * shares.get(source, 0.0), weighed)

    def op(self, position: int, format_: str) -> float:
        op = self._graph.ops[position]
        if format_ == self._policy.low and op.key in self.swaps:
            known = self._priced.get(op.key)
            return self._swapped(position, self.swaps[op.key]) if known is None else known
        sort = (self.same[position], format_)
        if sort not in self._known:
            compute = self._compute if format_ == self._policy.high else ""
            inputs, mode = self._inputs(position), self._graph.mode
            self._known[sort] = roofline.op_seconds(op, inputs, format_, self._hardware, mode, compute=compute)
        return self._known[sort]

    def _swapped(self, position: int, swap: Swap) -> float:
        op, row = self._graph.ops[position], recipes.recipe(swap.backend, swap.recipe)
        return swap_cost.seconds(op, self._inputs(position), row, self._policy.low, self._hardware, self._graph.mode)

    def predicted(
        self, reads: Readings, runs: Sequence[str], casts: Iterable[Cast], folds: Iterable[Fold]
    ) -> Predicted:
        seconds = seconds_high = 0.0
        for position, (op, each) in enumerate(zip(self._graph.ops, runs, strict=True)):
            if op.kind in ("input", "parameter", "buffer", "constant"):
                continue
            captured = self._captured(position)
            once = self.op(position, captured)
            seconds_high += once
            seconds += once if each in (CAPTURED, captured) else self.op(position, each)
        spent = 0.0
        for cast in casts:
            tensor = self._tensors[cast.value]
            spent += self._cast(tensor, made_format(tensor, runs[reads.maker[cast.value]], self._policy), cast.to)
        share = self._error_share(runs, casts, folds) if self.shares else 0.0
        return Predicted(seconds + spent, seconds_high, spent, sum(cast.bytes for cast in casts), share)

    def widened(self, runs: Sequence[str]) -> int:
        """Bytes of the casts that ops make within themselves."""
        total = 0
        for position, (op, each) in enumerate(zip(self._graph.ops, runs, strict=True)):
            if each == self._policy.low and ops.widens(op.op, each, self._hardware.kernels):
                ends = (self._inputs(position)[0], op.outputs[0])
                total += sum(roofline.cast_bytes(tensor, each, "fp32") for tensor in ends)
        return total

    def _error_share(self, runs: Sequence[str], casts: Iterable[Cast], folds: Iterable[Fold]) -> float:
        low = self._policy.low
        made_low: list[Cast | Fold] = [*casts, *folds]
        sources: set[Source] = {f"cast:{each.value}" for each in made_low if each.to == low}
        sources |= {(f"cast:{each.value}", key) for each in made_low if each.to == low for key in each.consumers}
        for op, each in zip(self._graph.ops, runs, strict=True):
            if each == low:
                sources.add(f"cast:{op.key}" if op.kind == "input" else op.key)
        return math.fsum(self.shares.get(source, 0.0) for source in sources)

    def _captured(self, position: int) -> str:
        floats = [t.format for t in self._graph.ops[position].outputs if is_float(t.format)]
        return floats[0] if floats and self._policy.high not in floats else self._policy.high

    def _inputs(self, position: int) -> list[Tensor]:
        operands = self._graph.ops[position].operands
        return [self._tensors[operand.value] for operand in operands if operand.value in self._tensors]

    def _cast(self, tensor: Tensor, source: str, target: str) -> float:
        return roofline.cast_seconds(tensor, source, target, self._hardware, self._graph.mode)

    def _copy(self, tensor: Tensor, format_: str) -> float:
        return roofline.copy_seconds(tensor, format_, self._hardware)
