"""Which op's derivative loses gradients when the model runs wholly in the low format.

Takes a capture in training mode, policy, device, the example and the user's loss; gives one `Backward` per op whose own
derivative is to blame. The forward can be right where the backward is not: an infinite cube that a tanh hides, a norm
whose square underflows, a branch that `where` does not take. What only the values of the forward show is not looked at.

One forward and backward of the captured model and one of the low one, under the same draws; the low one beside what
is remembered of the first: where it was not finite itself, and how large. In fp16 the loss is scaled so that no
gradient needs more than fp16 has, and gradients that a smaller scale gives back are no one's fault: stepping down is
the gradient scaler's work. Where a gradient of a parameter is lost the low model runs once more, every lost element
replaced by zero where it appears: each op then receives what is finite, and what is lost still is its own doing. Only
then is the remedy sought, by trying: these ops in the high format, then what makes their operands with them, what reads
them at last, until the gradients are back; then what was not needed is given up again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from precision_audit import ops
from precision_audit.analyse.blame import joined, led_from, to_blame
from precision_audit.analyse.gradients import Edge, gradients
from precision_audit.analyse.sensitivity import ACTIVATIONS, bytes_of_values
from precision_audit.capture import Captured
from precision_audit.formats import FORMATS, is_float
from precision_audit.plain import everything_low
from precision_audit.records import Backward, Graph, Hardware, Op, Plan, Policy
from precision_audit.rewrite import rewrite
from precision_audit.verify.limits import limit
from precision_audit.verify.measures import gradient_figure, largest_rms, measure
from precision_audit.verify.runs import Batch, Conditions

_LARGEST_SCALE = 16  # 2^16, where torch.amp.GradScaler begins
_STEPS_DOWN = (0, 8)  # powers of two below the largest scale that fits
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
    steps = _Steps(captured, policy, hardware, batch, loss)
    found = steps.low(frozenset())
    if not _lost_parameters(graph, found):
        return ()
    mended = steps.mended(found.scale)
    blamed = to_blame(graph, found.lost, mended.lost)
    if not blamed:
        return ()
    pins, errors = _remedy(steps, graph, blamed)
    reached = _lost_parameters(graph, found)
    return tuple(_record(graph, edge, mended, reached, pins, errors) for edge in blamed.items())


@dataclass
class Step:
    """One training step of a low model. `lost` and `count` are elements by edge; `errors` the gradients of parameters
    that were lost in the first one, relative to the captured model's."""

    scale: float
    lost: dict[Edge, int] = field(default_factory=dict)
    count: dict[Edge, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)


class _Steps:
    """The captured model's step, remembered, and steps of the model wholly low but for a few ops."""

    def __init__(
        self,
        captured: Captured,
        policy: Policy,
        hardware: Hardware,
        batch: Batch,
        loss: Callable[[Any], Tensor] | None,
    ) -> None:
        self._captured, self._policy, self._hardware, self._batch = captured, policy, hardware, batch
        self._broken: dict[Edge, Tensor] = {}  # by edge, elements that are not finite in the captured model
        self._amax = 0.0
        self._affected: frozenset[str] = frozenset()
        module = self._module(Plan("", captured.graph.mode, "", "", (), ()))
        self._conditions = Conditions(True, loss, draws=True, written=module.written)
        found = gradients(captured, module, batch, self._conditions, self._remember)
        self._expected, self._norms = found
        self._largest = largest_rms(self._expected.values())
        self._scale = self._fitting()

    def mended(self, scale: float) -> Step:
        """Everything low; what is lost is zero from there on."""
        plan = everything_low(self._captured.graph, self._policy, self._hardware)
        assert plan is not None
        return self._step(self._module(plan), scale, mended=True)

    def low(self, kept: frozenset[str]) -> Step:
        """Everything low but the ops `kept`, at the largest loss scale that loses nothing, else at the largest."""
        graph = self._captured.graph
        values = frozenset(value for op in graph.ops if op.key in kept for value in op.values)
        plan = everything_low(graph, self._policy, self._hardware, values)
        assert plan is not None
        module = self._module(plan)
        first: Step | None = None
        for down in _STEPS_DOWN if self._policy.low == "fp16" else (0,):
            step = self._step(module, self._scale * 2.0**-down)
            first = first or step
            if not _lost_parameters(self._captured.graph, step):
                return step
        assert first is not None
        if not kept:
            self._affected = frozenset(_lost_parameters(self._captured.graph, first))
        return first

    def allowed(self, parameter: str) -> float:
        """The error that the policy leaves a gradient; any where it names no limit."""
        found = limit(self._policy, "gradient_relative_l2", parameter)
        return math.inf if found is None else found

    def _module(self, plan: Plan) -> Any:
        mode = self._captured.graph.mode
        return rewrite({mode: self._captured}, {mode: plan}, share_parameters=True)

    def _step(self, module: Any, scale: float, mended: bool = False) -> Step:
        step = Step(scale)

        def listen(edge: Edge, gradient: Tensor) -> Tensor | None:
            lowest, highest = (float(each) for each in gradient.aminmax())
            if math.isfinite(lowest) and math.isfinite(highest):
                return None
            lost = ~torch.isfinite(gradient)
            broken = self._broken.get(edge)
            if broken is not None and broken.shape == lost.shape:
                lost &= ~broken
            step.lost[edge] = step.lost.get(edge, 0) + int(lost.sum())
            step.count[edge] = gradient.numel()
            return gradient.masked_fill(lost, 0.0) if mended else None

        made, _ = gradients(self._captured, module, self._batch, self._conditions, listen, self._norms, scale)
        for name in self._affected & made.keys() & self._expected.keys():
            step.errors[name] = gradient_figure(measure(self._expected[name], made[name]), self._largest)[0]
        return step

    def _remember(self, edge: Edge, gradient: Tensor) -> None:
        lowest, highest = (float(each) for each in gradient.aminmax())
        if math.isfinite(lowest) and math.isfinite(highest):
            self._amax = max(self._amax, -lowest, highest)
            return
        finite = torch.isfinite(gradient)
        self._broken[edge] = ~finite
        self._amax = max(self._amax, float(torch.where(finite, gradient, 0.0).abs().max()))

    def _fitting(self) -> float:
        """The largest power of two that leaves every gradient finite in fp16; other formats have fp32's range."""
        if self._policy.low != "fp16":
            return 1.0
        if not self._amax:
            return 2.0**_LARGEST_SCALE
        return 2.0 ** min(_LARGEST_SCALE, math.floor(math.log2(FORMATS["fp16"].max_finite / self._amax)))


def _lost_parameters(graph: Graph, step: Step) -> list[str]:
    return [op.key for op in graph.ops if op.kind in ("parameter", "input") and step.lost.get((op.key, ""))]


def _remedy(steps: _Steps, graph: Graph, blamed: Iterable[str]) -> tuple[frozenset[str], dict[str, float]]:
    """Ops that give the gradients back when they run high, and the errors that are left; none where nothing does."""
    search = _Search(steps, graph, frozenset(blamed))
    tried = list(search.outwards())
    finite = [(keys, step) for keys, step in tried if not _lost_parameters(graph, step)]
    if not finite:
        return tried[-1][0], {}
    best = min(_worst(step) for _, step in finite)
    kept, step = next((keys, step) for keys, step in finite if search.good(step) or _worst(step) <= _NEAR * best)
    return search.without_what_is_not_needed(kept, step)


class _Search:
    """What counts as mended, and where to look for it."""

    def __init__(self, steps: _Steps, graph: Graph, blamed: frozenset[str]) -> None:
        self._steps, self._graph, self.blamed = steps, graph, blamed
        self._makers = {value: op for op in graph.ops for value in op.values}
        self._by_key = {op.key: op for op in graph.ops}

    def outwards(self) -> Iterator[tuple[frozenset[str], Step]]:
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

    def good(self, step: Step) -> bool:
        within = all(error <= self._steps.allowed(name) for name, error in step.errors.items())
        return within and not _lost_parameters(self._graph, step)

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

    def without_what_is_not_needed(self, kept: frozenset[str], step: Step) -> tuple[frozenset[str], dict[str, float]]:
        """GEMMs are given up first, they cost most; then from the farthest to the nearest."""
        order = [op for op in self._graph.ops if op.key in kept - self.blamed]
        order.sort(key=lambda op: op.kind not in _GEMMS)
        for op in order[:_GIVEN_UP]:
            less = kept - {op.key}
            found = self._steps.low(less)
            same = not _lost_parameters(self._graph, found) and _worst(found) <= _NEAR * _worst(step)
            if self.good(found) or same:
                kept, step = less, found
        return kept, step.errors


def _is_free(op: Op) -> bool:
    return not op.fixed and any(is_float(tensor.format) for tensor in op.outputs) and ops.row(op.op) is not None


def _worst(step: Step) -> float:
    return max(step.errors.values(), default=0.0)


def _record(
    graph: Graph,
    blamed: tuple[str, str],
    own: Step,
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
    return Backward(key, value, own.lost[edge], own.count[edge], own.scale, reaches, kept, error)
