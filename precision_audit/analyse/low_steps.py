"""Training steps of the model wholly low, but for a few ops, against what is remembered of the captured model's.

Takes a capture, policy, device, the example and a loss; gives one `LowStep` per set of ops kept high. Of the captured
model's gradients the norms stay, and which elements were not finite; those of the parameters stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from precision_audit.analyse.gradients import Edge, gradients
from precision_audit.capture import Captured
from precision_audit.formats import FORMATS
from precision_audit.plain import everything_low
from precision_audit.records import Graph, Hardware, Plan, Policy
from precision_audit.rewrite import rewrite
from precision_audit.verify.limits import limit
from precision_audit.verify.measures import ZERO_GRADIENT, gradient_figure, largest_rms, measure
from precision_audit.verify.runs import Batch, Conditions

_LARGEST_SCALE = 16  # 2^16, where torch.amp.GradScaler begins
_STEPS_DOWN = (0, 8)  # powers of two below the largest scale that fits
_GONE = 0.5  # of its norm: what is left of a gradient that the format could hold is off by as much at least


@dataclass
class LowStep:
    """One training step of a low model. `lost` and `count` are elements by edge, `norms` those of the unscaled
    gradients; `errors` are of the parameters whose gradient was lost in the first one, against the captured model's."""

    scale: float
    lost: dict[Edge, int] = field(default_factory=dict)
    count: dict[Edge, int] = field(default_factory=dict)
    norms: dict[Edge, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def add(self, edge: Edge, gradient: Tensor) -> None:
        """An edge that is passed twice, once through a cast, has the norm of both."""
        wide = torch.promote_types(gradient.dtype, torch.float32)
        norm = float(torch.linalg.vector_norm(gradient, dtype=wide)) / self.scale
        self.norms[edge] = math.hypot(self.norms.get(edge, 0.0), norm)
        self.count[edge] = gradient.numel()


class LowSteps:
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
        self._high = LowStep(1.0)
        self._affected: frozenset[str] = frozenset()
        module = self._module(Plan("", captured.graph.mode, "", "", (), ()))
        self._conditions = Conditions(True, loss, draws=True, written=module.written)
        found = gradients(captured, module, batch, self._conditions, self._remember)
        self._expected, self._norms = found
        self._largest = largest_rms(self._expected.values())
        self._scale = self._fitting()

    def mended(self, scale: float) -> LowStep:
        """Everything low; what is lost is zero from there on."""
        plan = everything_low(self._captured.graph, self._policy, self._hardware)
        assert plan is not None
        return self._step(self._module(plan), scale, mended=True)

    def low(self, kept: frozenset[str]) -> LowStep:
        """Everything low but the ops `kept`, at the largest loss scale that loses nothing, else at the largest."""
        graph = self._captured.graph
        plan = everything_low(graph, self._policy, self._hardware, kept)
        assert plan is not None
        module = self._module(plan)
        first: LowStep | None = None
        for down in _STEPS_DOWN if self._policy.low == "fp16" else (0,):
            step = self._step(module, self._scale * 2.0**-down)
            first = first or step
            if not lost_parameters(self._captured.graph, step):
                return step
        assert first is not None
        return first

    def affects(self, parameters: Iterable[str]) -> None:
        """Whose errors later steps tell."""
        self._affected = frozenset(parameters)

    def counts(self, parameter: str) -> bool:
        """Whether it has a gradient that is more than zero but for rounding."""
        gradient = self._expected.get(parameter)
        if gradient is None:
            return False
        return largest_rms((gradient,)) > ZERO_GRADIENT * self._largest

    def gone(self, step: LowStep) -> dict[Edge, int]:
        """The edges whose gradient has vanished though the format could hold it at that scale, with their elements."""
        smallest = FORMATS[self._policy.low].min_normal or 0.0
        found = {}
        for edge, norm in self._high.norms.items():
            count = self._high.count[edge]
            held = norm / count**0.5 * step.scale >= smallest  # root mean square
            if held and math.isfinite(norm) and step.norms.get(edge, math.inf) < _GONE * norm:
                found[edge] = count
        return found

    def allowed(self, parameter: str) -> float:
        """The error that the policy leaves a gradient; any where it names no limit."""
        found = limit(self._policy, "gradient_relative_l2", parameter)
        return math.inf if found is None else found

    def _module(self, plan: Plan) -> Any:
        mode = self._captured.graph.mode
        return rewrite({mode: self._captured}, {mode: plan}, share_parameters=True)

    def _step(self, module: Any, scale: float, mended: bool = False) -> LowStep:
        step = LowStep(scale)

        def listen(edge: Edge, gradient: Tensor) -> Tensor | None:
            lowest, highest = (float(each) for each in gradient.aminmax())
            step.add(edge, gradient)
            if math.isfinite(lowest) and math.isfinite(highest):
                return None
            lost = ~torch.isfinite(gradient)
            broken = self._broken.get(edge)
            if broken is not None and broken.shape == lost.shape:
                lost &= ~broken
            step.lost[edge] = step.lost.get(edge, 0) + int(lost.sum())
            return gradient.masked_fill(lost, 0.0) if mended else None

        made, _ = gradients(self._captured, module, self._batch, self._conditions, listen, self._norms, scale)
        for name in self._affected & made.keys() & self._expected.keys():
            step.errors[name] = gradient_figure(measure(self._expected[name], made[name]), self._largest)[0]
        return step

    def _remember(self, edge: Edge, gradient: Tensor) -> None:
        lowest, highest = (float(each) for each in gradient.aminmax())
        self._high.add(edge, gradient)
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


def lost_parameters(graph: Graph, step: LowStep) -> list[str]:
    return [op.key for op in graph.ops if op.kind in ("parameter", "input") and step.lost.get((op.key, ""))]
