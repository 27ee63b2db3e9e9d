"""Buffers that the model writes to while it runs, and whether a low format would let them go on.

Takes a capture and batches; gives one `Accumulated` for each float buffer that a forward pass changes: counters,
totals, running statistics, moving averages. Two passes without gradient over a copy of the state, then the second one
again with every such buffer shifted: the part of the shift that is left afterwards is the share of the old
value that goes into the new one, whatever ops compute it. Never changes the user's buffers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from precision_audit.ambient import restored_on_error
from precision_audit.analyse.training.updates import FORMATS_OF_WEIGHTS, unmoved
from precision_audit.capture import Captured
from precision_audit.formats import dtype_of
from precision_audit.records import Accumulated, Graph, Op
from precision_audit.rewrite import unchanged
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.runs import Batch, Conditions, without_trace

_Shifts = Mapping[str, tuple[Tensor, Tensor]]

_STEPS = 2
_FLOATS = ("fp64", "fp32", "bf16", "fp16")
_NORMS = ("batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm")
_SAME = 1e-3  # relative difference up to which elements moved alike


def accumulated(captured: Captured, batches: Sequence[Batch]) -> tuple[Accumulated, ...]:
    """In the order of the graph; buffers that are overwritten whole, keeping nothing, are left out."""
    writers = written(captured.graph)
    if not writers or not batches:
        return ()
    module = unchanged({captured.graph.mode: captured})
    module.train(captured.graph.mode == "training")
    conditions = Conditions(training=False, draws=False, written=module.written)
    with torch.no_grad(), restored_on_error(), without_trace(module, conditions):
        seen = [_values(module, writers)]
        for step in range(_STEPS):
            _run(module, batches[step % len(batches)])
            seen.append(_values(module, writers))
        shifted = _shifted(module, seen[-2], seen[-1], batches[(_STEPS - 1) % len(batches)])
    found = (_record(name, op.key, [each[name] for each in seen], shifted[name]) for name, op in writers.items())
    return tuple(each for each in found if each is not None)


def written(graph: Graph) -> Mapping[str, Op]:
    """Float buffers that an op writes in place, with the first op that does; through views of them, too."""
    shared: dict[str, set[str]] = {}
    for members in graph.aliases:
        for value in members:
            shared.setdefault(value, set()).update(members)
    targets = [(op, target) for op in graph.ops for target in _targets(op)]
    found: dict[str, Op] = {}
    for buffer in graph.ops:
        if buffer.kind == "buffer" and buffer.outputs[0].format in _FLOATS:
            alike = {buffer.key} | shared.get(buffer.key, set())
            for op, target in targets:
                if target in alike:
                    found.setdefault(buffer.key, op)
    return found


def _targets(op: Op) -> list[str]:
    """What an op writes to: the argument it names; of norms in training their statistics, which no schema names."""
    if op.op in _NORMS and any(dict(op.attributes).get(name) for name in ("training", "use_input_stats")):
        return [operand.value for operand in op.operands if operand.argument.startswith("running_")]
    return [operand.value for operand in op.operands if op.mutates and operand.argument == op.mutates]


def _values(module: Converted, names: Mapping[str, Op]) -> dict[str, Tensor]:
    buffers = dict(module.named_buffers(remove_duplicate=False))
    return {name: buffers[name].detach().double().clone() for name in names if name in buffers}


def _run(module: Converted, batch: Batch) -> None:
    torch.manual_seed(0)
    args, kwargs = pytree.tree_map_only(Tensor, lambda value: value.detach().clone(), (batch[0], dict(batch[1])))
    args, kwargs = module.as_read(args, kwargs)
    module(*args, **kwargs)


def _shifted(module: Converted, before: Mapping[str, Tensor], after: Mapping[str, Tensor], batch: Batch) -> _Shifts:
    """Each buffer's shift, and what is left of it after the last pass was run again from shifted buffers."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    shifts = {name: _shift(value) for name, value in before.items()}
    for name, value in before.items():
        buffers[name].copy_(value + shifts[name])
    _run(module, batch)
    return {name: (shifts[name], buffers[name].detach().double() - after[name]) for name in before}


def _shift(value: Tensor) -> Tensor:
    """As large as the value, and another for each element: what is moved to another place (a queue) is not kept."""
    size = max(float(value.abs().max()), 1.0) if value.numel() else 1.0
    return size * (1 + torch.arange(value.numel(), dtype=value.dtype) / max(value.numel(), 1)).reshape(value.shape)


def _record(name: str, writer: str, seen: Sequence[Tensor], shift: tuple[Tensor, Tensor]) -> Accumulated | None:
    changes = [after - before for before, after in itertools.pairwise(seen)]
    moved = changes[-1] != 0
    if not bool(moved.any()) or not all(bool(torch.isfinite(each).all()) for each in seen):
        return None
    kept = _alike((shift[1] / shift[0]).reshape(-1))
    if kept is None or kept < _SAME:
        return None
    constant = _alike(torch.cat([change.reshape(-1) for change in changes]))
    lost = {}
    for format in FORMATS_OF_WEIGHTS:
        still = count = 0
        for before, change in zip(seen, changes, strict=False):
            some = change != 0
            stored = before[some].to(dtype_of(format)).double()
            still += int(unmoved(stored, change[some], format).sum())
            count += int(some.sum())
        lost[format] = still / count
    return Accumulated(
        value=name,
        writer=writer,
        kept=kept,
        constant=constant or 0.0,
        step=float(changes[-1].abs().max()),
        size=float(seen[-1].abs().max()),
        lost=tuple(lost.items()),
    )


def _alike(values: Tensor) -> float | None:
    """The one number that all elements are, within rounding; None where they differ."""
    middle = float(values.median())
    if not math.isfinite(middle) or not bool(((values - middle).abs() <= _SAME * max(abs(middle), _SAME)).all()):
        return None
    return middle
