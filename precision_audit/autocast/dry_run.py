"""The formats that one op makes of given formats, found by running it on tensors without memory.

Takes an op record and the formats its operands have; gives the formats of its outputs, with torch.autocast on or off
around it. This is PyTorch's own promotion, kernel rules and autocast, not an imitation of them. Never computes a
number, never allocates, leaves the autocast state of the process as it was.

An op that cannot be run so (its result depends on data, an argument is a size known only at run time, its kernel wants
a real device) gives None, and the caller falls back on what the table says. Answers are kept by target, formats and
arguments, so that a model of a hundred equal layers asks once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from precision_audit.formats import FORMATS, dtype_of, format_of
from precision_audit.records import Op, Tensor

_FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")  # tells at length of every op it cannot run


class _Given(NamedTuple):
    """One tensor argument."""

    argument: str
    format: str
    hint: tuple[int, ...]


def formats_made(op: Op, operands: Sequence[Tensor], device: str = "cpu", autocast: str = "") -> tuple[str, ...] | None:
    """Formats of the outputs of `op` on operands of these formats and sizes, None if it cannot be run without data.
    `autocast` is the low format of a torch.autocast region on `device` around it, "" for none."""
    given, attributes = _named(op, operands)
    return _made(op.target, given, attributes, device, autocast)


def call_of(overload: Any, op: Op, operands: Sequence[Tensor], device: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments to call `op` with, its operands in these formats. Raises ValueError for what is not known before the
    model runs."""
    given, attributes = _named(op, operands)
    return _arguments(overload, given, dict(attributes), device)


def overload_of(target: str) -> Any:
    """`aten.sum.dim_IntList` → the callable; None for anything that is no aten overload."""
    parts = target.split(".")
    if len(parts) != 3 or parts[0] != "aten":
        return None
    packet = getattr(torch.ops.aten, parts[1], None)
    return getattr(packet, parts[2], None) if packet is not None else None


def _named(op: Op, operands: Sequence[Tensor]) -> tuple[tuple[_Given, ...], tuple[tuple[str, Any], ...]]:
    given = tuple(
        _Given(operand.argument, tensor.format, tensor.hint)
        for operand, tensor in zip(op.operands, operands, strict=True)
    )
    return given, tuple((name, _frozen(value)) for name, value in op.attributes)


@lru_cache(maxsize=16384)
def _made(
    target: str, given: tuple[_Given, ...], attributes: tuple[tuple[str, Any], ...], device: str, autocast: str
) -> tuple[str, ...] | None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    overload = overload_of(target)
    if overload is None:
        return None
    try:
        with silenced(), FakeTensorMode(), torch.no_grad(), region(device, autocast):
            args, kwargs = _arguments(overload, given, dict(attributes), device)
            result = overload(*args, **kwargs)
    except Exception:  # whatever an op raises without data or a device, the caller has another way
        return None
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(format_of(each.dtype) if isinstance(each, torch.Tensor) else "" for each in outputs)


@contextmanager
def silenced() -> Iterator[None]:
    """Nothing of what torch logs about ops that cannot be run without data."""
    level = _FAKE_LOG.level
    _FAKE_LOG.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        _FAKE_LOG.setLevel(level)


@contextmanager
def region(device: str, autocast: str) -> Iterator[None]:
    """Autocast on `device` alone, or none at all. `torch.autocast` itself switches off where the device is missing."""
    kinds = ("cpu", "cuda")
    before = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    for kind in kinds:
        torch.set_autocast_enabled(kind, bool(autocast) and kind == device)
    if autocast:
        torch.set_autocast_dtype(device, dtype_of(autocast))
    try:
        yield
    finally:
        for kind, (enabled, low) in before.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, low)
        torch.set_autocast_cache_enabled(cached)


def _arguments(
    overload: Any, given: Sequence[_Given], attributes: Mapping[str, Any], device: str
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments by the op's schema; tensors are made for the operands."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in overload._schema.arguments:
        tensors = [_tensor(each, device) for each in given if each.argument == argument.name]
        kind = str(argument.type)
        if tensors:
            value: Any = tensors if "List" in kind else tensors[0]
        elif argument.name in attributes:
            value = _value(attributes[argument.name], kind, argument)
        elif argument.has_default_value():
            value = argument.default_value
        elif kind.startswith("Optional"):
            value = None
        else:
            raise ValueError(f"{overload}: no value for {argument.name}")
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _tensor(given: _Given, device: str) -> torch.Tensor:
    return torch.empty(given.hint, dtype=dtype_of(given.format), device=device)


def _value(value: Any, kind: str, argument: Any) -> Any:
    """A recorded argument as torch takes it: formats by name become dtypes; devices and layouts do not matter here."""
    if not isinstance(value, str) or kind.removeprefix("Optional[").startswith("str"):
        return list(value) if isinstance(value, tuple) else value
    if argument.name.endswith("dtype") and (value in FORMATS or hasattr(torch, value)):
        return dtype_of(value)
    if argument.has_default_value():
        return argument.default_value
    if kind.startswith("Optional"):
        return None
    raise ValueError(f"{argument.name}={value} is not known before the model runs")


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, (list, tuple)) else value
