"""The changes that `apply` makes to a model, each of which can be taken back.

Takes the model; swaps modules, stores state in other formats, registers hooks. Used as a context: when it is left by an
exception, everything is undone, last first. A `trial` inside it is undone alone when the model then raises.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn

from precision_audit import backends
from precision_audit.ambient import random_state_kept
from precision_audit.applying.fitting import Names
from precision_audit.applying.hooks import Gives, Takes
from precision_audit.capture import private_copy, set_mode
from precision_audit.formats import dtype_of
from precision_audit.records import Fold, Plan, Swap
from precision_audit.records.applied import Hooked, NotExpressed

Batch = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Trial:
    """`raised`: what the model said when it was run, "" where it ran. `why`: what it said in earlier trials."""

    raised: str = ""
    why: str = ""


class Changes:
    """All changes of one `apply`."""

    def __init__(self, model: nn.Module, plan: Plan, names: Names) -> None:
        self._model, self._plan, self._names = model, plan, names
        self._undo: list[Callable[[], object]] = []
        self._said = ""
        self.left: list[NotExpressed] = []
        self.notes: list[str] = []

    def __enter__(self) -> Changes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._back_to(0)

    def swap(self) -> tuple[Swap, ...]:
        """Put what the backends build in the place of each linear, under all names that it has. Built first, all of
        them: a refusal comes before any change."""
        built: dict[int, tuple[nn.Module, nn.Module]] = {}
        done: dict[str, Swap] = {}
        for swap in self._plan.swaps:
            if swap.covers:
                self.left.append(_covering(swap))
                continue
            module = self._names.module(swap.module)
            assert module is not None
            if id(module) not in built:
                made = backends.get(swap.backend).build(module, swap)  # type: ignore[arg-type]
                built[id(module)] = (module, made)
            done.setdefault(swap.module, swap)
        for old, new in built.values():
            new.train(old.training)
        for parent in list(self._model.modules()):
            for name, child in list(parent._modules.items()):
                if id(child) in built:
                    self._put(parent, name, built[id(child)][1])
        return tuple(done.values())

    def store(self, folds: Iterable[Fold]) -> None:
        """Keep state in the low format; a tensor stays the object that it is, under all its names."""
        seen: set[int] = set()
        for fold in folds:
            tensor = self._names.tensor(fold.value)
            assert tensor is not None
            if id(tensor) not in seen:
                seen.add(id(tensor))
                self._store(tensor, dtype_of(fold.to))

    def hook(self, hooked: Iterable[Hooked]) -> None:
        high, low = dtype_of(self._plan.high), dtype_of(self._plan.low)
        modules = dict(self._model.named_modules(remove_duplicate=False))
        for each in hooked:
            module = modules[each.module]
            if each.takes:
                to = dtype_of(each.takes)
                takes = Takes(to, low if to == high else high, _arguments(module))
                # first, and last of all below: what the user's own hooks compute belongs to the module
                self._undo.append(module.register_forward_pre_hook(takes, prepend=True, with_kwargs=True).remove)
            if each.gives:
                to = dtype_of(each.gives)
                self._undo.append(module.register_forward_hook(Gives(to, low if to == high else high)).remove)

    @contextlib.contextmanager
    def trial(self, batch: Batch) -> Iterator[Trial]:
        """What is changed inside is taken back where the model then raises on `batch`; without one nothing is run."""
        mark, trial = len(self._undo), Trial(why=self._said)
        yield trial
        if batch[0] or batch[1]:
            trial.raised = self._run(batch)
            if trial.raised:
                self._said = self._said or trial.raised
                self._back_to(mark)

    def _run(self, batch: Batch) -> str:
        """What the model says to the example; it is run as a copy around the same parameters."""
        copy = private_copy(self._model)
        set_mode(copy, self._plan.mode)
        for module in copy.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer if buffer is None else buffer.clone()
        try:
            with torch.no_grad(), random_state_kept():
                copy(*batch[0], **batch[1])
        except Exception as error:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        return ""

    def _put(self, parent: nn.Module, name: str, new: nn.Module) -> None:
        old = parent._modules[name]
        self._undo.append(lambda: parent._modules.__setitem__(name, old))
        setattr(parent, name, new)

    def _store(self, tensor: torch.Tensor, low: torch.dtype) -> None:
        old, grad = tensor.data, tensor.grad

        def back() -> None:
            tensor.grad = None
            tensor.data, tensor.grad = old, grad

        self._undo.append(back)
        tensor.grad = None  # it has the other format
        tensor.data = old.to(low)

    def _back_to(self, mark: int) -> None:
        while len(self._undo) > mark:
            self._undo.pop()()


def _arguments(module: nn.Module) -> tuple[str, ...]:
    """Names of the positional arguments of a module's forward."""
    try:
        return tuple(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return ()


def _covering(swap: Swap) -> NotExpressed:
    return NotExpressed(
        (swap.op, *swap.covers),
        f"one {swap.kind}",
        "",
        (),
        f"{swap.kind} takes the place of several modules, which the forward of the user calls one by one",
        f"write {swap.kind} into the model, or convert it",
    )
