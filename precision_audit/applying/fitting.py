"""Whether the model is the one that the plan was made for.

Takes the model and a plan, with its graph where there is one; raises InputError in one line where a path, a size or a
format differs, and before that where the model was changed already: a second plan on top of a first would give what
neither says. Nothing was changed by then. Gives the model's own name of what capture had to rename.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from precision_audit.applying.hooks import Gives, Takes
from precision_audit.capture.accepts import check_model
from precision_audit.capture.spelling import respelled, restored
from precision_audit.formats import dtype_of, format_of
from precision_audit.records import Graph, InputError, Plan

# Parts of a name that wrappers put before or between the model's own.
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module")


class Names:
    """The model's modules and tensors by the plan's paths."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._spelled = respelled(model)[1]
        self._modules = dict(model.named_modules(remove_duplicate=False))

    def own(self, path: str) -> str:
        return restored(path, self._spelled)

    def module(self, path: str) -> nn.Module | None:
        return self._modules.get(self.own(path))

    def tensor(self, path: str) -> torch.Tensor | None:
        """A registered parameter or buffer."""
        parent, _, name = self.own(path).rpartition(".")
        holder = self._modules.get(parent)
        if holder is None:
            return None
        found: torch.Tensor | None = holder._parameters.get(name)
        return holder._buffers.get(name) if found is None else found


def check_unchanged(model: nn.Module) -> None:
    """InputError for a model that was converted, swapped or quantised, or that a plan was applied to."""
    from precision_audit.rewrite.converted import Converted

    if isinstance(model, Converted):
        raise InputError("the model is a converted one already; give the model that it was made from, or a fresh one")
    check_model(model)
    for path, module in model.named_modules():
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        if any(isinstance(hook, (Takes, Gives)) for hook in hooks):
            where = f"module {path}" if path else type(model).__name__
            raise InputError(f"{where} has the casts of a plan that was applied before; give a fresh model")


def check_fit(model: nn.Module, plan: Plan, graph: Graph | None) -> Names:
    """The names of `model`, once it is sure that the plan fits it."""
    names = Names(model)
    problems = [*_swaps(names, plan), *_state(names, plan, graph), *_modules(names, plan)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(f"the plan does not fit {type(model).__name__}: {problems[0]}{more}{_wrapped(model)}")
    return names


def _wrapped(model: nn.Module) -> str:
    """What to give instead of a module that only wraps the model, and so has other paths."""
    inner = list(model._modules)
    return f"; it wraps {inner[0]}: give that one" if len(inner) == 1 and inner[0] in WRAPPERS else ""


def _swaps(names: Names, plan: Plan) -> Iterator[str]:
    for swap in plan.swaps:
        module = names.module(swap.module)
        if module is None:
            yield f"it swaps {swap.module}, and there is no such module"
        elif isinstance(module, nn.Linear) and (module.in_features, module.out_features) != (swap.k, swap.n):
            yield f"{swap.module} is {module.in_features} -> {module.out_features}, the plan has {swap.k} -> {swap.n}"


def _state(names: Names, plan: Plan, graph: Graph | None) -> Iterator[str]:
    for fold in plan.folds:
        held = names.tensor(fold.value)
        if held is not None and held.dtype == dtype_of(fold.to):
            yield f"{fold.value} is {fold.to} already: was it applied before?"
    if graph is None:
        for key, _ in plan.formats:
            if "/" not in key and key in {fold.value for fold in plan.folds} and names.tensor(key) is None:
                yield f"it has no {key}"
        return
    known = {key for key, _ in plan.formats}
    for op in graph.ops:
        if op.kind not in ("parameter", "buffer"):
            if op.key not in known and any(tensor.format == plan.high for tensor in op.outputs) and op.operands:
                yield f"{op.key} is not in the plan"
            continue
        tensor = names.tensor(op.key)
        if tensor is None:
            yield f"it has no {op.kind} {op.key}"
        elif tuple(tensor.shape) != op.outputs[0].hint:
            yield f"{op.key} has the shape {tuple(tensor.shape)}, the plan was made for {op.outputs[0].hint}"
        elif format_of(tensor.dtype) != op.outputs[0].format:
            made_for = f"the plan was made for {op.outputs[0].format}{_again(tensor, plan)}"
            yield f"{op.key} is {format_of(tensor.dtype)}, {made_for}"


def _again(tensor: torch.Tensor, plan: Plan) -> str:
    return ": was it applied before?" if tensor.dtype == dtype_of(plan.low) else ""


def _modules(names: Names, plan: Plan) -> Iterator[str]:
    for path in dict.fromkeys(key.rpartition("/")[0] for key, _ in plan.formats if "/" in key):
        if names.module(path) is None:
            yield f"it has no module {path}"
