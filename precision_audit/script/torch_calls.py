"""Calls of torch's functions and classes, and of other packages' that make models or optimizers.

Takes a walk, a call and the full dotted name of what is called; gives its value and notes the event. What is in no
table of `known` is a call that leads out of the file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_audit.script import calls, deciding, known, methods
from precision_audit.script.conditions import Formula
from precision_audit.script.values import Value

if TYPE_CHECKING:
    from precision_audit.script.calls import Arguments
    from precision_audit.script.walk import Walk


def call(walk: Walk, node: ast.Call, name: str, given: Arguments) -> Value:
    last = name.rpartition(".")[2]
    first = given.get(0)
    if name in known.SCALERS:
        return _scaler(walk, node, name, given)
    if name in known.AUTOCASTS:
        return autocast(walk, node, name, given)
    if name == "functools.partial" and first is not None:
        rest = calls.Arguments(given.positional[1:], given.keywords, given.open)
        return Value("partial", node=node, items=(first,), scope=rest)
    if known.WRAPPERS.match(name) and first is not None:
        return first
    if known.SCHEDULER.search(name):
        return Value("scheduler", name, node)
    if known.OPTIMIZER.match(name):
        made = Value("optimizer", name, node, of=tuple(_models(given.get(0, "params"))))
        walk.emit("make", node, made)
        return made
    if known.CRITERION.match(name):
        return Value("loss", name, node)
    if known.FUNCTIONAL_LOSS.match(name):
        return methods.loss(walk, node, name, given)
    if name == "torch.nn.Parameter":
        return Value("parameter", name, node)
    if name in known.CLIPS:
        walk.emit("clip", node, given.get(0, "parameters"), text=last)
        return Value("tensor")
    if known.MODEL.match(name):
        return _model(walk, name, node, given)
    return _function(walk, node, name, given)


def autocast(walk: Walk, node: ast.AST, name: str, given: Arguments) -> Value:
    """torch.autocast(device_type, dtype, enabled) or torch.cuda.amp.autocast(enabled, dtype)."""
    old = name.startswith(("torch.cuda.amp", "torch.cpu.amp"))
    device = name.split(".")[1] if old else device_of(given.get(0, "device_type"))
    format = given.get(1, "dtype")
    chosen = methods.format_of(format) if format is not None and not format.is_none else ""
    if (format is None or format.is_none) and not walk.own_defaults:
        chosen = {"cuda": "fp16", "cpu": "bf16"}.get(device, "")
    return Value("autocast", name, node, device=device, format=chosen, enabled=_enabled(walk, given, 0 if old else 2))


def _scaler(walk: Walk, node: ast.Call, name: str, given: Arguments) -> Value:
    old = name.startswith(("torch.cuda.amp", "torch.cpu.amp"))
    device = name.split(".")[1] if old else device_of(given.get(0, "device")) or "cuda"
    made = Value("scaler", name, node, device=device, enabled=_enabled(walk, given, 4 if old else 5))
    walk.emit("make", node, made)
    return made


def _enabled(walk: Walk, given: Arguments, place: int) -> Formula | None:
    written = given.node(place, "enabled")
    if written is None:
        return None if given.open else True
    return deciding.condition(walk, written)


def device_of(value: Value | None) -> str:
    """A device's type, where it is written out: cuda of `"cuda:0"`."""
    if value is None:
        return ""
    if value.kind == "device":
        return value.name
    return value.constant.partition(":")[0] if isinstance(value.constant, str) else ""


def _models(value: Value | None) -> Iterator[Value]:
    """The models whose parameters an optimizer is given, parameter groups included."""
    if value is None:
        return
    if value.kind in ("parameters", "parameter"):
        yield from value.of
    for item in value.items:
        yield from _models(item)


def _model(walk: Walk, name: str, node: ast.Call, given: Arguments) -> Value:
    made = Value("model", name, node)
    format = given.get(-1, "torch_dtype", "dtype")
    if format is not None and methods.format_of(format) in ("fp16", "bf16"):
        made.attributes["low"] = Value("constant", constant=methods.format_of(format))
        walk.emit("cast", node, made, text=methods.format_of(format))
    made.device = device_of(given.get(-1, "device"))
    return made


def _function(walk: Walk, node: ast.Call, name: str, given: Arguments) -> Value:
    """Functions of torch, and whatever is left."""
    first = given.get(0)
    if name == "torch.autograd.backward" and first is not None:
        walk.emit("backward", node, first, scaler=first.scaled)
        return Value()
    if name == "torch.autograd.grad":
        outputs = given.get(0, "outputs")
        scaler = next((each.scaled for each in (outputs, *outputs.items) if each.scaled), None) if outputs else None
        walk.emit("autograd", node, outputs, scaler=scaler)
        return Value("tensor", node=node, varies=True)
    if name in known.NORMS and first is not None and first.kind == "grad":
        walk.emit("read", node, first, text=name)
    if name in ("copy.deepcopy", "copy.copy") and first is not None:
        copied = Value(first.kind if first.kind in ("model", "parameter", "tensor") else "unknown", node=node)
        copied.scope, copied.name = first.scope, first.name if first.kind == "model" else ""
        return copied
    if name == "torch.device":
        return Value("device", device_of(first), node)
    if known.PLAIN_CONTEXTS.search(name):
        return Value("context", name, node, enabled=False)
    if name in known.FACTORIES:
        return methods.derived(node, given.all(), "tensor", methods.format_of(given.get(-1, "dtype")))
    return calls.leave(walk, node, name, given)
