"""The first op at which two runs of one graph part.

Takes the reference and the converted module, whose nodes carry `meta["op_key"]` as the rewriter sets it, and one batch;
gives the key of the first op, in graph order, whose inputs agree within the tolerance while an output of it does not.
An op whose inputs already differ is never blamed, nor is one that is not finite in both runs.

Never keeps activations. Each value is reduced, the moment its node has run and before an in-place op can change it, to
a *sketch*: a small one is kept whole; of a large one, 509 sums of its elements under signs drawn from a fixed seed. A
sketch is linear, so the norm of the difference of two sketches estimates that of the two tensors: without bias in the
square, with a relative deviation of √(2/509), 6 %, which is enough to tell a part from an agreement. Memory is 4 KiB a
value, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from precision_audit.ambient import restored_on_error
from precision_audit.records import Graph, Op
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.runs import Batch, Conditions, without_trace

Traced = Converted | fx.GraphModule

_SUMS = 509  # prime, so that the columns of a matrix do not all fall into one sum
_PIECE = _SUMS << 13  # elements at a time, 32 MiB in float64


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is kept of one value. `sums` are over its finite elements; `lost` says which elements are not finite: how
    many, and the sum of their positions."""

    sums: Tensor
    norm: float
    lost: tuple[int, int]


def find(graph: Graph, reference: Traced, converted: Traced, *, batch: Batch, tolerance: float, seed: int = 0) -> str:
    """Runs both modules on the batch under the same draws, and compares."""
    recorder = _Recorder(converted)
    try:
        _record(recorder, converted, batch, seed)
    except Exception:  # an op that cannot run parts more than any other
        return recorder.running
    return first_parting(graph, values(reference, batch, seed), recorder.seen, tolerance)


def values(module: Traced, batch: Batch, seed: int = 0) -> dict[str, Sketch]:
    """A sketch of every value whose node has a key; output i of a node with several is `key:i`."""
    recorder = _Recorder(module)
    _record(recorder, module, batch, seed)
    return recorder.seen


def _record(recorder: _Recorder, module: Traced, batch: Batch, seed: int) -> None:
    written: frozenset[str] = module.written if isinstance(module, Converted) else frozenset()
    conditions = Conditions(training=False, seed=seed, draws=True, written=written)
    with torch.no_grad(), restored_on_error(), without_trace(module, conditions):
        args, kwargs = pytree.tree_map_only(Tensor, lambda value: value.detach().clone(), (batch[0], dict(batch[1])))
        recorder.run(*_leaves(module, args, kwargs), enable_io_processing=False)


def first_parting(
    graph: Graph, reference: Mapping[str, Sketch], converted: Mapping[str, Sketch], tolerance: float
) -> str:
    """The op's key, "" where no op parts; a parameter's where the conversion stored it too far off. A value that was
    not recorded is as far apart as the op's own inputs."""
    apart: dict[str, bool] = {}
    for op in graph.ops:
        inputs_apart = any(apart.get(operand.value, False) for operand in op.operands)
        for value in op.values:
            if value in reference and value in converted:
                apart[value] = distance(reference[value], converted[value]) > tolerance
            else:
                apart[value] = inputs_apart
        if not inputs_apart and any(apart[value] for value in op.values):
            return op.key
        _spread(op, graph, apart)
    return ""


def distance(one: Sketch, other: Sketch) -> float:
    """Estimated relative L2 of two values; infinite where only the second is not finite."""
    if one.lost != other.lost:
        return float("inf") if one.lost[0] == 0 else 0.0
    if one.sums.shape != other.sums.shape:
        return float("inf")
    return float((one.sums - other.sums).norm()) / (one.norm or 1.0)


def sketch(value: Tensor) -> Sketch:
    """Reduces one tensor; the same signs for every tensor of the same size, whatever its format."""
    flat = value.detach()
    flat = (torch.view_as_real(flat.resolve_conj()) if flat.is_complex() else flat).reshape(-1)
    sums = torch.zeros(min(flat.numel(), _SUMS), dtype=torch.float64)
    generator = torch.Generator().manual_seed(flat.numel())
    square, lost, positions = 0.0, 0, 0
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE].cpu().double()
        finite = torch.isfinite(piece)
        if not bool(finite.all()):
            where = torch.nonzero(~finite)
            lost += where.numel()
            positions += int(where.sum()) + start * where.numel()
            piece = torch.where(finite, piece, torch.zeros_like(piece))
        square += float(piece.square().sum())
        sums += piece if flat.numel() <= _SUMS else _signed(piece, generator)
    return Sketch(sums, square**0.5, (lost, positions))


class _Recorder(fx.Interpreter):
    def __init__(self, module: Traced) -> None:
        super().__init__(module, graph=module.graph)
        self.seen: dict[str, Sketch] = {}
        self.running = ""  # the op that runs, or that failed

    def run_node(self, n: fx.Node) -> Any:
        key = n.meta.get("op_key")
        self.running = key or self.running
        result = super().run_node(n)
        if key is not None and isinstance(result, Tensor):
            self.seen[key] = sketch(result)
        elif key is not None and isinstance(result, tuple | list):
            for index, each in enumerate(result):
                if isinstance(each, Tensor):
                    self.seen[f"{key}:{index}"] = sketch(each)
        return result


def _signed(piece: Tensor, generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, piece.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
    padding = -piece.numel() % _SUMS
    return torch.nn.functional.pad(piece * signs, (0, padding)).reshape(-1, _SUMS).sum(0)


def _leaves(module: Traced, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Placeholders in order: an exported module takes the leaves of its arguments, keyword ones in its own order."""
    if isinstance(module, Converted):
        return module.flatten(*module.as_read(args, kwargs))
    specification = getattr(getattr(module.graph, "_codegen", None), "pytree_info", None)
    if specification is None:
        names = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
        return [*args, *(kwargs[name] for name in names if name in kwargs)]
    order = list(kwargs)
    children = specification.in_spec.children()
    if len(children) == 2 and children[1].type is dict:
        order = [name for name in children[1].context if name in kwargs]
    return pytree.tree_leaves((args, [kwargs[name] for name in order]))


def _spread(op: Op, graph: Graph, apart: dict[str, bool]) -> None:
    """An in-place op leaves its target, and what shares memory with it, as it leaves its result."""
    if not (op.mutates and op.values):
        return
    for operand in op.operands:
        if operand.argument == op.mutates:
            shared = next((group for group in graph.aliases if operand.value in group), (operand.value,))
            for value in shared:
                apart[value] = apart[op.values[0]] or (value != operand.value and apart.get(value, False))
