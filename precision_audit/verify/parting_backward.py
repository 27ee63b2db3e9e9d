"""The first op, going backward, at which the gradients of two runs of one graph part.

Takes the reference and the converted module and one batch; gives the key of the op nearest the outputs whose results
have gradients that agree within the tolerance while one of its operands, or its parameter, has one that does not. Where
several such ops read the operand, the gradient is their sum and a swapped one is named before the others. Gradients
descend from the loss, or from the outputs as `runs` projects them; what is zero but for rounding is judged as
`measures.gradient_figure` judges parameters. Keeps sketches only (see `parting`), changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from precision_audit.ambient import restored_on_error
from precision_audit.formats import is_float
from precision_audit.records import Graph, Op
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.measures import ZERO_GRADIENT
from precision_audit.verify.parting import Sketch, distance, sketch
from precision_audit.verify.runs import Batch, Conditions, norms_of, scalar, trainable, without_trace
from precision_audit.verify.runs import flatten as named_outputs


@dataclass(frozen=True, slots=True)
class Gradient:
    sketch: Sketch
    count: int  # of elements

    @property
    def rms(self) -> float:
        return self.sketch.norm / math.sqrt(max(self.count, 1))


def find(
    graph: Graph,
    reference: Converted,
    converted: Converted,
    *,
    batch: Batch,
    tolerance: float,
    loss: Callable[[Any], Tensor] | None = None,
    scale: float = 1.0,
) -> str:
    """Runs both modules forward and backward under the same draws, and compares; "" where nothing parts."""
    swapped = {str(node.meta.get("op_key")) for node in converted.graph.nodes if node.op == "call_module"}
    try:
        expected, norms = gradients(reference, batch, loss)
        made, _ = gradients(converted, converted.as_read(*batch), loss, norms, scale)
    except Exception:  # a run that fails has been told of already
        return ""
    return first_parting(graph, expected, made, tolerance, swapped)


def gradients(
    module: Converted,
    batch: Batch,
    loss: Callable[[Any], Tensor] | None = None,
    norms: Mapping[str, float] | None = None,
    scale: float = 1.0,
) -> tuple[dict[str, Gradient], dict[str, float]]:
    """The gradient of every value that has a key and of every parameter, and the norms of the outputs."""
    conditions = Conditions(training=True, loss=loss, draws=True, written=module.written)
    parameters = trainable(module)
    recorder = _Recorder(module, scale)
    with restored_on_error(), without_trace(module, conditions), torch.enable_grad():
        flat = [each.detach().clone() if isinstance(each, Tensor) else each for each in module.flatten(*batch)]
        output = module.unflatten(recorder.run(*flat, enable_io_processing=False))
        named = named_outputs(output)
        used = dict(norms if norms is not None else norms_of(named))
        total = scalar(output, named, used, conditions) * scale
        found = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    made = {name: _reduced(each, scale) for name, each in zip(parameters, found, strict=True) if each is not None}
    return recorder.seen | made, used


def first_parting(
    graph: Graph,
    expected: Mapping[str, Gradient],
    made: Mapping[str, Gradient],
    tolerance: float,
    swapped: Collection[str] = (),
) -> str:
    state = {op.key for op in graph.ops if not op.operands}  # the sizes of its gradients are not those of activations
    apart: dict[str, bool] = {}
    for kind in (expected.keys() & state, expected.keys() - state):
        largest = max((expected[key].rms for key in kind), default=0.0)
        apart |= {key: _apart(expected[key], made[key], tolerance, largest) for key in kind if key in made}
    readers: dict[str, list[Op]] = {}
    for op in graph.ops:
        if any(is_float(each.format) for each in op.outputs):
            for value in {operand.value for operand in op.operands}:
                readers.setdefault(value, []).append(op)
    for op in reversed(graph.ops):
        for value in (each for each in op.values if each not in apart):  # inside a module that took its op's place
            apart[value] = any(apart.get(one, False) for each in readers.get(value, ()) for one in each.values)
        for operand in op.operands:
            sums = readers.get(operand.value, [])
            if apart.get(operand.value) and op in sums and not any(apart.get(v) for each in sums for v in each.values):
                return next((each.key for each in reversed(sums) if each.key in swapped), op.key)
    return ""


def _apart(expected: Gradient, made: Gradient, tolerance: float, largest: float) -> bool:
    error = distance(expected.sketch, made.sketch)
    if expected.rms > ZERO_GRADIENT * largest or error == float("inf"):
        return error > tolerance
    return error * (expected.sketch.norm or 1.0) / math.sqrt(max(expected.count, 1)) > tolerance * largest


def _reduced(gradient: Tensor, scale: float) -> Gradient:
    whole = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
    return Gradient(sketch(whole / scale), whole.numel())


class _Recorder(fx.Interpreter):
    def __init__(self, module: Converted, scale: float) -> None:
        super().__init__(module, graph=module.graph)
        self.scale = scale
        self.seen: dict[str, Gradient] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        key = n.meta.get("op_key")
        if key is not None and n.op in ("call_function", "call_module"):
            many = isinstance(result, tuple | list)
            for name, each in [(f"{key}:{i}", each) for i, each in enumerate(result)] if many else [(key, result)]:
                if isinstance(each, Tensor) and each.requires_grad:
                    each.register_hook(partial(self._saw, name))  # type: ignore[no-untyped-call]
        return result

    def _saw(self, name: str, gradient: Tensor) -> None:
        self.seen[name] = _reduced(gradient, self.scale)
