"""Calls of methods on scalers, optimizers, models and tensors.

Takes a walk, a call, its receiver and the method's name; gives its value and notes the event. Goes by what the receiver
is; where that is unknown, by names that mean one thing only in a training loop (`backward`, `unscale_`, `zero_grad`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from precision_audit.script import calls, known, torch_calls
from precision_audit.script.values import Value

if TYPE_CHECKING:
    from precision_audit.script.calls import Arguments
    from precision_audit.script.walk import Walk

_UNKNOWN_SCALER = "scaled by"  # of what `x.scale(loss)` gives where nobody knows what x is
_OF_MODULES = ("modules", "named_modules", "children", "named_children")
_KEEPS = ("train", "eval", "requires_grad_", "apply", "share_memory", "cuda", "cpu", "to", "half", "bfloat16", "float",
          "double", "compile", "set_epoch", "state_dict", "load_state_dict", "gradient_checkpointing_enable",
          "print_trainable_parameters", "no_sync", "register_forward_hook", "buffers", "named_buffers", "get_parameter",
          "save_pretrained", "add_module", "register_buffer", "log", "log_dict", "named_parameters",
          "parameters", "type", "set_requires_gradient_sync", "children")  # fmt: skip


def call(walk: Walk, node: ast.Call, owner: Value, name: str, given: Arguments) -> Value:
    made = _of_any(walk, node, owner, name, given)
    if made is not None:
        return made
    role = owner.role
    if role == "scaler":
        return _of_scaler(walk, node, owner, name, given)
    if role == "optimizer":
        return _of_optimizer(walk, node, owner, name, given)
    if role == "scheduler":
        return Value()
    if role == "model":
        return _of_model(walk, node, owner, name, given)
    if role in ("parameters", "sequence"):
        return _of_sequence(owner, name, given)
    if role in ("tensor", "parameter", "grad"):
        return _of_tensor(walk, node, owner, name, given)
    return _of_unknown(walk, node, owner, name, given)


def forward(walk: Walk, node: ast.Call, model: Value, given: Arguments, sure: bool = True) -> Value:
    """A model is run."""
    made = derived(node, given.all(), "tensor")
    made.of, made.low, made.scaled = (model,), "", None
    low = model.attributes.get("low")
    if low is not None and isinstance(low.constant, str):
        made.low = low.constant if low.constant in ("fp16", "bf16") else ""
    event = walk.emit("forward", node, model, sure=sure, value=made)
    if event is not None:
        made.forwards = frozenset({event.index})
    return made


def loss(walk: Walk, node: ast.Call, name: str, given: Arguments) -> Value:
    """A loss is computed of its first argument."""
    first = given.get(0, "input")
    made = derived(node, given.all(), "tensor")
    made.low = ""
    target = given.get(1, "target")
    if target is not None:
        made.attributes["target"] = target
    walk.emit("loss", node, first, text=name, value=made)
    return made


def derived(node: ast.AST, parts: Iterable[Value], kind: str, low: str = "") -> Value:
    """What is computed from others."""
    parts = [part for each in parts for part in (each, *each.items)]
    return Value(
        kind,
        node=node,
        of=tuple(dict.fromkeys(model for part in parts if part.kind == "tensor" for model in part.of)),
        low=low if low in ("fp16", "bf16") else "",
        varies=any(part.varies for part in parts),
        forwards=frozenset().union(*(part.forwards for part in parts)),
        scaled=next((part.scaled for part in parts if part.scaled), None),
        factor=any(part.factor for part in parts),
    )


def format_of(value: Value | None) -> str:
    """The format that a dtype names: fp16 of `torch.float16`, "" where unknown."""
    return known.FORMATS.get(value.name, "") if value is not None and value.kind == "dotted" else ""


def _of_any(walk: Walk, node: ast.Call, owner: Value, name: str, given: Arguments) -> Value | None:
    """Methods that mean one thing, whatever they are called on."""
    first = given.get(0)
    if name == "backward" and owner.role in ("tensor", "unknown", "grad") and (first is None or owner.kind == "tensor"):
        walk.emit("backward", node, owner, scaler=owner.scaled, sure=_UNKNOWN_SCALER not in owner.attributes)
        return Value()
    if name in ("backward", "manual_backward"):  # accelerator.backward(loss): code outside the file
        walk.emit("backward", node, first, scaler=None, sure=False)
        return Value()
    if name == "zero_grad":
        walk.emit("zero", node, owner)
        return Value()
    if owner.kind == "grad" and name in ("zero_", "fill_", "detach_"):
        if name != "detach_":
            walk.emit("zero", node, None)
        return owner
    if name == "autocast":
        return Value("autocast", name, node, enabled=None)
    return None


def _of_scaler(walk: Walk, node: ast.Call, owner: Value, name: str, given: Arguments) -> Value:
    first = given.get(0)
    if name == "scale" and first is not None:
        made = derived(node, [first], "tensor")
        made.scaled = owner
        return made
    if name in ("unscale_", "step") and (first is not None or given.keywords):
        subject = first or given.get(-1, "optimizer")
        walk.emit("unscale" if name == "unscale_" else "step", node, subject, scaler=owner)
    elif name == "update":
        walk.emit("update", node, None, scaler=owner)
    elif name not in ("get_scale", "state_dict", "load_state_dict", "is_enabled", "get_growth_factor", "scale"):
        walk.emit("foreign", node, owner)
    return Value(name=name)


def _of_optimizer(walk: Walk, node: ast.Call, owner: Value, name: str, given: Arguments) -> Value:
    if name == "step":
        closure = given.get(0, "closure")
        if closure is not None and closure.kind in ("function", "bound"):
            calls.follow(walk, closure, calls.Arguments())
        elif closure is not None and not closure.is_none:
            walk.emit("foreign", node, owner)
        walk.emit("step", node, owner)
    elif name not in ("state_dict", "load_state_dict", "add_param_group", "train", "eval", "register_step_post_hook"):
        walk.emit("foreign", node, owner)  # first_step of SAM, synchronize of Horovod
    return Value()


def _of_model(walk: Walk, node: ast.Call, owner: Value, name: str, given: Arguments) -> Value:
    if name in ("parameters", "named_parameters"):
        return Value("parameters", "named" if name == "named_parameters" else "", node, of=(owner,))
    if name in _OF_MODULES:
        return Value("modules", name, node, of=(owner,))
    if name == "clip_grad_norm_":
        walk.emit("clip", node, Value("parameters", of=(owner,)), text=name)
        return Value("tensor")
    format = known.CASTS.get(name, "")
    if name in ("to", "type"):
        format = next(filter(None, map(format_of, (given.get(0), given.get(1), given.get(-1, "dtype")))), "")
    if format:
        walk.emit("cast", node, owner, text=format)
        walk.bind(owner.attributes, "low", Value("constant", constant=format))
    if name in ("to", "cuda", "cpu"):
        _move(owner, name, given)
    if name == "no_sync":
        return Value("context", name, node, enabled=False)
    if name in _KEEPS:
        return owner
    return forward(walk, node, owner, given, sure=False)


def _move(model: Value, name: str, given: Arguments) -> None:
    if name in ("cuda", "cpu"):
        model.device = name
        return
    first = given.get(0, "device")
    if first is not None and not format_of(first):
        model.device = torch_calls.device_of(first)


def _of_sequence(owner: Value, name: str, given: Arguments) -> Value:
    first = given.get(0)
    if name in ("append", "add") and first is not None and owner.kind == "sequence":
        owner.items += (first,)
    elif name == "extend" and first is not None and owner.kind == "sequence":
        owner.items += first.items or (first,)
    elif name == "values":
        return owner
    elif name == "items":
        return Value("sequence", items=tuple(Value("sequence", items=(Value(), item)) for item in owner.items))
    elif name in ("get", "pop"):
        return Value()
    return Value()


def _of_tensor(walk: Walk, node: ast.Call, owner: Value, name: str, given: Arguments) -> Value:
    if owner.kind == "grad" and name in known.GRADIENT_SIZES:
        walk.emit("read", node, owner, text=name)
    named = isinstance(node.func, ast.Attribute) and isinstance(
        node.func.value, ast.Name | ast.Attribute | ast.Subscript
    )
    drops = node is walk.bare and named and (name in known.OUT_OF_PLACE or name == "copy")
    if drops and not (owner.of and name == "to"):  # a model's output may be a record whose to() works in place
        walk.emit("dropped", node, owner, text=name)
    made = derived(node, [owner, *given.all()], "grad" if owner.kind == "grad" and name == "detach" else "tensor")
    made.low = owner.low
    if name in known.CASTS or name in ("to", "type"):
        asked = [format_of(each) for each in (given.get(0), given.get(1), given.get(-1, "dtype"))]
        format = known.CASTS.get(name) or next(filter(None, asked), "")
        if format:
            made.low = format if format in ("fp16", "bf16") else ""
        elif any(each is not None and each.kind == "unknown" for each in (given.get(0), given.get(-1, "dtype"))):
            made.low = ""  # .to(something): a device or a format
    made.of = owner.of
    return made


def _of_unknown(walk: Walk, node: ast.Call, owner: Value, name: str, given: Arguments) -> Value:
    first = given.get(0)
    if name == "scale" and first is not None and (first.forwards or first.role == "tensor" or "loss" in first.name):
        made = derived(node, [first], "tensor")
        made.attributes[_UNKNOWN_SCALER] = owner
        return made
    if name == "step" and first is not None and first.role == "optimizer":
        walk.emit("foreign", node, first)
        return Value()
    if name in ("parameters", "named_parameters"):
        return Value("parameters", "named" if name == "named_parameters" else "", node, of=(owner,))
    if name in _OF_MODULES:
        return Value("modules", name, node, of=(owner,))
    if known.PLAIN_CONTEXTS.search(name):
        return Value("context", name, node, enabled=False)
    if name in known.CASTS or name in ("to", "cuda", "cpu", "detach", "mean", "sum"):
        made = derived(node, [owner, *given.all()], "unknown", known.CASTS.get(name, ""))
        made.name = owner.name
        return made
    result = calls.leave(walk, node, name, given)
    result.forwards |= owner.forwards
    result.varies = result.varies or owner.varies
    return result
