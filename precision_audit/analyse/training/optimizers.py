"""The user's optimizer over the parameters of a copy of the model, and what it is.

Takes the factory that the user gave and a module; gives the optimizer, and its `Optimizer` record with the line on
which the user makes it. The factory is a callable of parameters; one whose argument is named `model` (or `module`,
`net`, `network`) gets the module. Refuses, in one line, what is no factory and an optimizer over other parameters: its
steps would change the user's own model, or nothing.
"""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from precision_audit.analyse.counting import counted
from precision_audit.analyse.histogram import points
from precision_audit.analyse.streaming import Streamed
from precision_audit.capture.sources import user_frame, users_frame
from precision_audit.master_weights import MasterWeights
from precision_audit.records import InputError, Optimizer, OptimizerState, Source, error_line, kind_of

Factory = Callable[..., torch.optim.Optimizer]

_OF_A_MODEL = ("model", "module", "net", "network")
_FIT = "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"


def made(factory: Factory, module: nn.Module) -> tuple[torch.optim.Optimizer, Source | None]:
    """The optimizer, and where the user makes it."""
    check(factory)
    places: list[Source] = []
    try:
        optimizer = factory(module if _wants_model(factory) else _parameters(module, places))
    except InputError:
        raise
    except Exception as error:
        at = user_frame(error)
        place = f" at {at.file}:{at.line}" if at else ""
        first = error_line(error)
        raise InputError(f"the optimizer cannot be made{place} ({first}); expected {_FIT}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer returned {kind_of(optimizer)}; expected a torch.optim.Optimizer: {_FIT}")
    if isinstance(optimizer, MasterWeights):  # which checks what it is given, and holds copies
        return optimizer, next(iter(places), None) or _defined(factory)
    own = {id(parameter) for parameter in module.parameters()}
    others = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
    if others:
        raise InputError(
            f"the optimizer holds {len(others)} parameters that are not those it was given; expected it to be made "
            f"over the argument of the factory, since steps are taken on a copy: {_FIT}"
        )
    return optimizer, next(iter(places), None) or _defined(factory)


def check(factory: object) -> None:
    """InputError for what cannot be called with parameters."""
    if isinstance(factory, torch.optim.Optimizer):
        raise InputError(
            f"optimizer is {kind_of(factory)} over your own parameters; expected a callable that makes one "
            f"over those of a copy: {_FIT}"
        )
    if not callable(factory):
        raise InputError(f"optimizer is {kind_of(factory)}; expected a callable of parameters: {_FIT}")


def described(optimizer: torch.optim.Optimizer, source: Source | None, states: tuple[OptimizerState, ...]) -> Optimizer:
    """Its class, the numbers of its first group, its state."""
    numbers: dict[str, float] = {}
    for name, value in optimizer.param_groups[0].items():
        if name == "betas":
            numbers.update(beta1=float(value[0]), beta2=float(value[1]))
        elif _is_number(value):
            numbers[name] = float(value)
    masters = isinstance(optimizer, MasterWeights)
    name = type(optimizer.optimizer if isinstance(optimizer, MasterWeights) else optimizer).__name__
    return Optimizer(name, tuple(numbers.items()), source, states, masters=masters)


def decay(group: dict[str, Any], optimizer: torch.optim.Optimizer) -> float:
    """lr · weight decay where that is a rounding of its own (AdamW and its like), else 0."""
    decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    return float(group.get("lr", 0.0)) * float(group.get("weight_decay") or 0.0) if decoupled else 0.0


class States:
    """What the optimizer keeps for each parameter, over all parameters and steps."""

    def __init__(self) -> None:
        self._seen: dict[str, Streamed] = {}
        self._bytes: dict[str, int] = {}
        self._points = points()

    def add(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        sizes: dict[str, int] = {}
        for state in optimizer.state.values():
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
                    self._seen.setdefault(str(name), Streamed()).add(counted(value, self._points), step)
                    sizes[str(name)] = sizes.get(str(name), 0) + value.numel() * value.element_size()
        self._bytes.update(sizes)

    def records(self) -> tuple[OptimizerState, ...]:
        return tuple(
            OptimizerState(name, seen.range(name, "OBSERVED"), self._bytes[name]) for name, seen in self._seen.items()
        )


def _is_number(value: Any) -> bool:
    one = isinstance(value, torch.Tensor) and value.numel() == 1
    return one or (isinstance(value, int | float) and not isinstance(value, bool))


def _parameters(module: nn.Module, places: list[Source]) -> Iterator[nn.Parameter]:
    """The parameters; where they are first asked for, the optimizer is being made."""
    stack = list(traceback.extract_stack())[:-1]
    ours = max(index for index, frame in enumerate(stack) if frame.filename == __file__)
    frame = users_frame(stack[ours + 1 :]) or users_frame(reversed(stack[:ours]))
    if frame is not None:
        places.append(frame)
    yield from module.parameters()


def _wants_model(factory: Factory) -> bool:
    try:
        names = list(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return False
    return bool(names) and names[0] in _OF_A_MODEL


def _defined(factory: Factory) -> Source | None:
    """Where the factory begins."""
    code = getattr(factory, "__code__", None)
    if code is None:
        return None
    text = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return Source(code.co_filename, code.co_firstlineno, code.co_name, text)
