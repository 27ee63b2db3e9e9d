"""Which op's derivative loses gradients when the model runs wholly in the low format.

Takes a capture in training mode, policy, device, the example and the user's loss; gives one `Backward` per op whose own
derivative is to blame. The forward can be right where the backward is not: an infinite cube that a tanh hides, a norm
whose square underflows, a branch that `where` does not take. What only the values of the forward show is not looked at.

One forward and backward of the captured model and of one low one, under the same draws; the low one beside what is
remembered of the first: where it was not finite itself, and how large. In fp16 the loss is scaled so that no gradient
needs more than fp16 has, and gradients that a smaller scale gives back are no one's fault: stepping down is the
gradient scaler's work. Where a gradient of a parameter is lost the low model runs once more, every lost element
replaced by zero where it appears: each op then receives what is finite, and what is lost still is its own doing. Where
none is lost but one has less than half of its norm, although the format could hold it, the ops are named that received
one and gave none. Only then is the remedy sought, by trying: these ops in the high format, then what makes their
operands with them, what reads them at last, until the gradients are back; then what was not needed is given up again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from precision_audit import ops
from precision_audit.analyse.blame import by_themselves, joined, led_from, to_blame
from precision_audit.analyse.low_steps import LowStep, LowSteps, lost_parameters
from precision_audit.analyse.sensitivity import ACTIVATIONS, bytes_of_values
from precision_audit.capture import Captured
from precision_audit.formats import is_float
from precision_audit.plain import everything_low
from precision_audit.records import Backward, Graph, Hardware, Op, Policy
from precision_audit.verify.runs import Batch

_UPSTREAM, _DOWNSTREAM = 6, 4  # how far from the ops the remedy may reach
_GIVEN_UP = 8  # runs to find what the remedy does not need
_NEAR = 1.5  # a remedy whose error is within this factor of the best one that was found is as good
_GEMMS = ("matmul", "conv", "attention", "rnn")
_STATE = ("input", "parameter", "buffer", "constant")


def backward(
    captured: Captured,
    policy: Policy,
    hardware: Hardware,
    batch: Batch,
    loss: Callable[[Any], Tensor] | None = None,
) -> tuple[Backward, ...]:
    """In graph order. Nothing for a policy of inference, which has no backward, nor where values do not fit memory."""
    graph = captured.graph
    if policy.mode != "training" or graph.mode != "training" or bytes_of_values(graph) > ACTIVATIONS:
        return ()
    if everything_low(graph, policy, hardware) is None:
        return ()
    steps = LowSteps(captured, policy, hardware, batch, loss)
    found = steps.low(frozenset())
    reached, own = lost_parameters(graph, found), found
    if reached:
        own = steps.mended(found.scale)
        blamed = to_blame(graph, found.lost, own.lost)
    else:
        gone = steps.gone(found)
        reached = [op.key for op in graph.ops if gone.get((op.key, "")) and steps.counts(op.key)]
        own = replace(found, lost=gone)
        blamed = to_blame(graph, gone, by_themselves(graph, gone)) if reached else {}
    if not blamed:
        return ()
    steps.affects(reached)
    pins, errors = _remedy(steps, graph, blamed)
    records = (_record(graph, edge, own, reached, pins, errors) for edge in blamed.items())
    return tuple(each for each in records if each.reaches)


def _remedy(steps: LowSteps, graph: Graph, blamed: Iterable[str]) -> tuple[frozenset[str], dict[str, float]]:
    """Ops that give the gradients back when they run high, and the errors that are left; none where nothing does."""
    search = _Search(steps, graph, frozenset(blamed))
    tried = list(search.outwards())
    finite = [(keys, step) for keys, step in tried if not lost_parameters(graph, step)]
    if not finite:
        return tried[-1][0], {}
    best = min(_worst(step) for _, step in finite)
    kept, step = next((keys, step) for keys, step in finite if search.good(step) or _worst(step) <= _NEAR * best)
    return search.without_what_is_not_needed(kept, step)


class _Search:
    """What counts as mended, and where to look for it."""

    def __init__(self, steps: LowSteps, graph: Graph, blamed: frozenset[str]) -> None:
        self._steps, self._graph, self.blamed = steps, graph, blamed
        self._makers = {value: op for op in graph.ops for value in op.values}
        self._by_key = {op.key: op for op in graph.ops}

    def outwards(self) -> Iterator[tuple[frozenset[str], LowStep]]:
        """Sets of ops with what came of each: first ever more of what leads to the ops, then of what follows too."""
        kept = self.blamed
        for near, rounds in ((self.makers, _UPSTREAM), (self.readers, _DOWNSTREAM)):
            for _ in range(rounds):
                step = self._steps.low(kept)
                yield kept, step
                more = kept | near(kept)
                if self.good(step):
                    return
                if more == kept:
                    break
                kept = more

    def good(self, step: LowStep) -> bool:
        within = all(error <= self._steps.allowed(name) for name, error in step.errors.items())
        return within and not lost_parameters(self._graph, step)

    def makers(self, keys: frozenset[str]) -> frozenset[str]:
        """The computed ops that make what these read, in floats and free to be kept high."""
        read = [self._makers[o.value] for key in keys for o in self._by_key[key].operands if o.value in self._makers]
        return frozenset(op.key for op in read if op.kind not in _STATE and _is_free(op))

    def readers(self, keys: frozenset[str]) -> frozenset[str]:
        """The ops that read what these make, likewise."""
        made = {value for key in keys for value in self._by_key[key].values}
        return frozenset(
            op.key for op in self._graph.ops if _is_free(op) and any(operand.value in made for operand in op.operands)
        )

    def without_what_is_not_needed(
        self, kept: frozenset[str], step: LowStep
    ) -> tuple[frozenset[str], dict[str, float]]:
        """GEMMs are given up first, they cost most; then from the farthest to the nearest."""
        order = [op for op in self._graph.ops if op.key in kept - self.blamed]
        order.sort(key=lambda op: op.kind not in _GEMMS)
        for op in order[:_GIVEN_UP]:
            less = kept - {op.key}
            found = self._steps.low(less)
            same = not lost_parameters(self._graph, found) and _worst(found) <= _NEAR * _worst(step)
            if self.good(found) or same:
                kept, step = less, found
        return kept, step.errors


def _is_free(op: Op) -> bool:
    return not op.fixed and any(is_float(tensor.format) for tensor in op.outputs) and ops.row(op.op) is not None


def _worst(step: LowStep) -> float:
    return max(step.errors.values(), default=0.0)


def _record(
    graph: Graph,
    blamed: tuple[str, str],
    own: LowStep,
    lost: Iterable[str],
    pins: frozenset[str],
    errors: Mapping[str, float],
) -> Backward:
    key, value = blamed
    edge = (value, key) if own.lost.get((value, key)) else (value, "")
    above = led_from(graph, key)
    reaches = tuple(each for each in lost if each in above)
    error = max((errors.get(name, 0.0) for name in reaches), default=0.0) if errors else math.inf
    kept = joined(graph, key, pins | {key})
    vanishes = math.isfinite(own.norms.get(edge, math.inf))
    return Backward(key, value, own.lost[edge], own.count[edge], own.scale, reaches, kept, error, vanishes)
