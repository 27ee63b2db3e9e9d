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
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from precision_audit.capture import graph as graph_records
from precision_audit.capture import origins, regions
from precision_audit.capture.sources import user_frame
from precision_audit.records import Graph, InputError, Mode, Source


@dataclass(frozen=True)
class Captured:
    """One model captured in one mode.

    `root` holds the parameters and buffers under their original names and the cleaned graph with flat inputs and
    outputs; `nodes` maps op keys to its nodes; `in_spec` and `out_spec` say how the flat lists are nested.
    """

    root: fx.GraphModule
    graph: Graph
    nodes: Mapping[str, fx.Node]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    types: Mapping[str, type]  # module path → class of the module the user wrote there


def capture(
    model: nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: Mode = "inference",
    dynamic_shapes: Any = None,
    names: Mapping[str, str] | None = None,
) -> Captured:
    """Capture `model` in training or evaluation mode.

    `model` is captured as it is handed in and shares its parameters with the result: hand in `private_copy(model)`.
    `dynamic_shapes` is what `torch.export.export` takes; `names` renames its symbols for people (`s77` → `B`).

    Raises InputError naming the user's line when the model cannot be captured whole.
    """
    args, kwargs = tuple(args), dict(kwargs or {})
    notes: list[str] = []
    if isinstance(model, torch.export.ExportedProgram):
        program, types = model, {}
    else:
        types = {name: type(module) for name, module in model.named_modules(remove_duplicate=False)}
        set_mode(model, mode)
        program = _export(model, args, kwargs, dynamic_shapes, notes)
    root = program.module(check_guards=False)
    in_spec, out_spec = root._in_spec, root._out_spec
    assert in_spec is not None and out_spec is not None
    regions.flatten(root, notes)
    follows: frozenset[fx.Node] = frozenset()
    if isinstance(model, nn.Module) and origins.has_literals(root.graph):
        follows = origins.following(root, lambda: _double_graph(model, args, kwargs, dynamic_shapes), notes)
    labels = _symbol_names(root.graph, in_spec, dynamic_shapes, names or {})
    records, nodes = graph_records.build(root, mode, follows, labels, tuple(notes))
    return Captured(root, records, nodes, in_spec, out_spec, types)


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
            f"{type(model).__name__} cannot be deep-copied ({_first_line(error)}); "
            "pass share_parameters=True to convert it in place"
        ) from error


def set_mode(model: nn.Module, mode: Mode) -> None:
    """Put every submodule into `mode`; a captured module that cannot switch is left as it is."""
    for module in model.modules():
        module.training = mode == "training"


def _export(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, notes: list[str]
) -> torch.export.ExportedProgram:
    """Non-strict export; then the remedies that are known to be right, each stated in `notes`."""

    def run() -> torch.export.ExportedProgram:
        with _tracing(model):
            return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)

    try:
        return run()
    except Exception as error:
        failure = error
    if _register_output(model, args, kwargs):
        with contextlib.suppress(Exception):
            return run()
    try:
        with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True):
            program = run()
    except Exception as error:
        raise _refusal(model, failure) from error
    notes.append(f"captured along the path that the example takes: {_first_line(failure)}")
    return program


@contextlib.contextmanager
def _tracing(model: nn.Module) -> Iterator[None]:
    """What has to hold while a model is traced: no key-value cache, nothing of torch's own on the user's screen."""
    owners: list[Any] = list(model.modules())
    configs = [m.config for m in owners if getattr(getattr(m, "config", None), "use_cache", None) is True]
    for config in configs:
        config.use_cache = False
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        for config in configs:
            config.use_cache = True


def _register_output(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Make the dataclass that a model returns known to pytree; true when something was registered."""
    with contextlib.suppress(Exception), torch.no_grad(), _tracing(model):
        output = copy.deepcopy(model)(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        found = [leaf for leaf in pytree.tree_leaves(output) if dataclasses.is_dataclass(leaf)]
        for leaf in found:
            if type(leaf) not in pytree.SUPPORTED_NODES:
                torch.export.register_dataclass(type(leaf))
        return bool(found)
    return False


def _double_graph(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> fx.Graph:
    """The same model after `.double()`, captured under fake tensors: no memory, no arithmetic."""
    double, fake_args, fake_kwargs = origins.as_double(model, args, kwargs)
    with _tracing(double):
        program = torch.export.export(double, fake_args, fake_kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    root = program.module(check_guards=False)
    regions.flatten(root, [])
    return root.graph


def _symbol_names(
    graph: fx.Graph, in_spec: pytree.TreeSpec, dynamic_shapes: Any, names: Mapping[str, str]
) -> dict[str, str]:
    """Symbols of the shape environment → the names of the dimensions the user gave."""
    labels = dict(names)
    if dynamic_shapes is None:
        return labels
    wanted = [leaf for leaf in pytree.tree_leaves(dynamic_shapes) if hasattr(leaf, "__name__")]
    known = {leaf.__name__ for leaf in wanted}
    shapes = pytree.tree_leaves(
        dynamic_shapes, is_leaf=lambda s: s is None or (isinstance(s, dict) and all(isinstance(k, int) for k in s))
    )
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, shapes, strict=False):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not isinstance(spec, dict):
            continue
        for axis, dim in spec.items():
            name = getattr(dim, "__name__", None)
            size = value.shape[axis]
            if name in known and isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                labels.setdefault(str(size.node.expr), name)
    return labels


def _refusal(model: nn.Module, error: Exception) -> InputError:
    if "dynamic_shapes" in str(error) or "Constraints violated" in str(error):
        return InputError(f"dynamic_shapes do not fit {type(model).__name__}: {_first_line(error, 400)}")
    where = user_frame(error)
    at = f" at {where.file}:{where.line}: {where.text}" if isinstance(where, Source) else ""
    said = f"{type(model).__name__} cannot be captured whole{at}"
    text = _first_line(error).rstrip(".")
    if "data-dependent" in str(error) or "GuardOnDataDependent" in type(error).__name__:
        return InputError(
            f"{said}: its path depends on data ({text}). Expected a model whose control flow does not depend on the "
            "values of tensors; use torch.where or torch.cond there, or audit the submodule that does the work"
        )
    return InputError(
        f"{said}: {type(error).__name__}: {text}. Check that the model runs on these inputs; if it does, write that "
        "line with tensor ops alone, or audit the submodule that does the work"
    )


def _first_line(error: Exception, length: int = 300) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:length]
