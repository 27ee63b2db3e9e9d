"""Capture: a module and example inputs become one FX graph and its records.

Takes an `nn.Module` (or `fx.GraphModule`, or `ExportedProgram`) with example inputs; gives a `Captured`: the training
IR of `torch.export` (aten ops stay whole, parameters keep their names), flat, cleaned of what only checks the
example, with one `Op` record per op. Never changes the user's module: a deep copy is captured unless the caller
shares parameters on purpose.

Why twice: export bakes `x.to(y.dtype)`, `torch.finfo(x.dtype).min` and `zeros(dtype=x.dtype)` as fp32 literals. A
second capture after `.double()`, under fake tensors, tells which literals follow the example's format and which are
the user's own: a literal that changed follows. It is skipped where the graph holds no such literal.

This is the front end that captures a model whole. Another front end has to deliver the same `Captured`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._functorch.config
from torch import fx, nn
from torch.utils import _pytree as pytree

from precision_audit.ambient import old_settings_readable, restored_on_error
from precision_audit.capture import functions, origins, regions
from precision_audit.capture import graph as graph_records
from precision_audit.capture.containers import registered, without_cache
from precision_audit.capture.handwritten import Kept
from precision_audit.capture.sources import user_frame, users_frames
from precision_audit.capture.spelling import respelled
from precision_audit.records import Graph, InputError, Mode, Source, first_line


@dataclass(frozen=True)
class Captured:
    """One model captured in one mode.

    `root` holds the parameters and buffers under their original names, but for `spelled`, and the cleaned graph with
    flat inputs and outputs; `nodes` maps op keys to its nodes; `in_spec` and `out_spec` say how the flat lists are
    nested.
    """

    root: fx.GraphModule
    graph: Graph
    nodes: Mapping[str, fx.Node]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    spelled: Mapping[str, str] = field(default_factory=dict)  # names at the top that had to change → the user's own


def capture(
    model: nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: Mode = "inference",
    dynamic_shapes: Any = None,
    kept: Collection[str] = (),
) -> Captured:
    """Capture `model` in training or evaluation mode.

    `model` is captured as it is handed in and shares its parameters with the result: hand in `private_copy(model)`.
    `dynamic_shapes` is what `torch.export.export` takes; `kept` are names of `torch.autograd.Function`s of which each
    call is to be one op that runs the class itself.

    Raises InputError naming the user's line when the model cannot be captured whole.
    """
    args, kwargs = tuple(args), dict(kwargs or {})
    notes: list[str] = []
    calls: list[functions.Call] = []
    keeping = Kept()
    spelled: dict[str, str] = {}
    if isinstance(model, torch.export.ExportedProgram):
        program = model
    else:
        set_mode(model, mode)
        model, spelled = respelled(model)
        program = _export(model, args, kwargs, dynamic_shapes, notes, lambda: functions.recorded(calls, kept, keeping))
    root = program.module(check_guards=False)
    in_spec, out_spec = root._in_spec, root._out_spec
    assert in_spec is not None and out_spec is not None
    regions.flatten(root, notes)
    follows: frozenset[fx.Node] = frozenset()
    if isinstance(model, nn.Module) and origins.has_literals(root):
        follows = origins.following(root, lambda: _double_graph(model, args, kwargs, dynamic_shapes, kept), notes)
    keeping.put(root)
    notes.extend(_closed(root.graph, dynamic_shapes))
    labels = _symbol_names(root.graph, dynamic_shapes)
    records, nodes = graph_records.build(root, mode, follows, labels, tuple(notes))
    records = dataclasses.replace(records, functions=functions.located(calls, nodes))
    return Captured(root, records, nodes, in_spec, out_spec, spelled)


def private_copy(model: nn.Module) -> nn.Module:
    """The model as objects of our own around the user's tensors: what a forward pass writes to attributes (counters,
    caches, traced values) stays here. Parameters and buffers are not copied; whoever runs the copy restores them."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                memo[id(tensor)] = tensor
        for value in vars(module).values():  # a computed weight (weight_norm's hook), an activation kept from a run
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot be deep-copied ({first_line(error, 300)}); "
            "pass share_parameters=True to convert it in place"
        ) from error


def set_mode(model: nn.Module, mode: Mode) -> None:
    """Put every submodule into `mode`; a captured module that cannot switch is left as it is."""
    for module in model.modules():
        module.training = mode == "training"


def _export(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    notes: list[str],
    recording: Callable[[], contextlib.AbstractContextManager[None]],
) -> torch.export.ExportedProgram:
    """Non-strict export; then the remedies that are known to be right, each stated in `notes`. `recording` is what sees
    to hand-written gradients, anew each time."""

    def run() -> torch.export.ExportedProgram:
        traced = _disposable(model)
        with _tracing(traced), restored_on_error(), recording():
            return torch.export.export(traced, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)

    try:
        return run()
    except (Exception, SystemExit) as error:
        failure = error
    if _register(model, args, kwargs):
        try:
            return run()
        except (Exception, SystemExit) as error:
            failure = error
    try:
        with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True):
            program = run()
    except (Exception, SystemExit) as error:
        raise (_not_run(model, args, kwargs) or _refusal(model, failure)) from error
    where = user_frame(failure)
    at = f" at {where.file}:{where.line}: {where.text}" if where else ""
    notes.append(f"captured along the path that the example takes{at}: {first_line(failure, 300)}")
    return program


@contextlib.contextmanager
def _tracing(model: nn.Module) -> Iterator[None]:
    """What has to hold while a model is traced: no key-value cache, nothing of torch's own on the user's screen."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        # torch writes the graph so far to stderr where a size depends on data, also where the next attempt succeeds
        with (
            old_settings_readable(),
            without_cache(model),
            users_frames(),
            warnings.catch_warnings(),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _disposable(model: nn.Module) -> nn.Module:
    """A copy to trace: what tracing leaves in attributes (a cache made of fake tensors) must meet no later run."""
    try:
        return private_copy(model)
    except InputError:
        return model


def _register(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Make what a model takes and returns known to pytree; true when something was registered."""
    found = registered((args, kwargs))
    with contextlib.suppress(Exception, SystemExit), torch.no_grad(), _tracing(model):
        found |= registered(copy.deepcopy(model)(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
    return found


def _double_graph(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, kept: Collection[str]
) -> fx.Graph:
    """The same model after `.double()`, captured under fake tensors: no memory, no arithmetic."""
    double, fake_args, fake_kwargs = origins.as_double(model, args, kwargs)
    with _tracing(double), restored_on_error(), functions.recorded([], kept, Kept()):
        program = torch.export.export(double, fake_args, fake_kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    root = program.module(check_guards=False)
    regions.flatten(root, [])
    return root.graph


def _symbol_names(graph: fx.Graph, dynamic_shapes: Any) -> dict[str, str]:
    """Symbols of the shape environment → the names of the dimensions the user gave."""
    labels: dict[str, str] = {}
    for _, _, size, dim in _dynamic(graph, dynamic_shapes):
        name = getattr(dim, "__name__", None)
        if name and isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
            labels.setdefault(str(size.node.expr), name)
    return labels


def _closed(graph: fx.Graph, dynamic_shapes: Any) -> Iterator[str]:
    """What to say of dimensions that were left open (`Dim.AUTO`) and are fixed nevertheless."""
    for node, axis, size, dim in _dynamic(graph, dynamic_shapes):
        if dim == torch.export.Dim.AUTO and (isinstance(size, int) or size.node.expr.is_Integer):
            why = "the model depends on that size" if int(size) > 1 else "an example of size 2 or more leaves it open"
            yield f"dimension {axis} of {node.name} is fixed at {size}: {why}"


def _dynamic(graph: fx.Graph, dynamic_shapes: Any) -> Iterator[tuple[fx.Node, int, int | torch.SymInt, Any]]:
    """Every input dimension that `dynamic_shapes` names: input, axis, its size in the graph and what was asked."""
    shapes = pytree.tree_leaves(
        dynamic_shapes, is_leaf=lambda s: s is None or (isinstance(s, dict) and all(isinstance(k, int) for k in s))
    )
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, shapes, strict=False):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and isinstance(spec, dict):
            yield from ((node, axis, value.shape[axis], dim) for axis, dim in spec.items())


def _not_run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InputError | None:
    """What to say where the model does not run on its inputs at all, captured or not."""
    try:
        with torch.no_grad(), restored_on_error():
            _disposable(model)(*args, **kwargs)
    except SystemExit:
        return None
    except Exception as error:
        where = user_frame(error)
        at = f" at {where.file}:{where.line}: {where.text}" if where else ""
        said = f"{type(error).__name__}: {first_line(error, 300).rstrip('.')}"
        return InputError(
            f"{type(model).__name__} does not run on these inputs{at}: {said}. "
            "Give inputs of the sizes and formats that it takes"
        )
    return None


def _refusal(model: nn.Module, error: BaseException) -> InputError:
    if "dynamic_shapes" in str(error) or "Constraints violated" in str(error):
        return InputError(f"dynamic_shapes do not fit {type(model).__name__}: {first_line(error, 400)}{_fixes(error)}")
    where = user_frame(error)
    at = f" at {where.file}:{where.line}: {where.text}" if isinstance(where, Source) else ""
    said = f"{type(model).__name__} cannot be captured whole{at}"
    text = first_line(error, 300).rstrip(".")
    if "data-dependent" in str(error) or "GuardOnDataDependent" in type(error).__name__:
        return InputError(
            f"{said}: its path depends on data ({text}). Expected a model whose control flow does not depend on the "
            "values of tensors; use torch.where or torch.cond there, or audit the submodule that does the work"
        )
    return InputError(
        f"{said}: {type(error).__name__}: {text}. Check that the model runs on these inputs; if it does, write that "
        "line with tensor ops alone, or audit the submodule that does the work"
    )


def _fixes(error: BaseException) -> str:
    """What torch suggests for a dimension that cannot vary so much: `T = Dim('T', max=32)`."""
    _, found, rest = str(error).partition("Suggested fixes:")
    lines = [line.strip() for line in rest.split("\n\n")[0].splitlines() if " = " in line]
    return f" Suggested: {'; '.join(lines)} in dynamic_shapes, or a fixed size" if found and lines else ""
