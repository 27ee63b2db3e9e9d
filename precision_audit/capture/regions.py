"""Flatten a captured module: one list of nodes, in execution order, with the user's regions kept.

Export wraps `torch.autocast` and `torch.no_grad` regions into sub-graphs. Here each sub-graph is written into the
outer graph between an enter and an exit node (`_enter_autocast` … `_exit_autocast`, `_set_grad_enabled`), which run,
compile and export exactly as the region did, so that every later stage sees one flat graph and a region is looked
into. `node.meta["region"]` names the autocast region a node is in.

Removed: `_guards_fn` and `_assert_tensor_metadata`, which check the example's format and would reject lowered
tensors. Other higher-order ops (`cond`, `while_loop`, …) stay whole; `notes` says so.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from precision_audit.formats import format_of

_AUTOCAST = "wrap_with_autocast"
_GRAD = "wrap_with_set_grad_enabled"
_CHECKS = ("_guards_fn",)


def flatten(root: fx.GraphModule, notes: list[str]) -> None:
    """Flatten `root` in place: regions inlined, checks of the example removed, inputs and outputs flat."""
    _strip_nesting(root)
    while _inline_one(root):
        pass
    for node in list(root.graph.nodes):
        if _checks_example(node):
            root.graph.erase_node(node)
    for node in root.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            notes.append(
                f"the branches of {higher_order_name(node.target)} run as captured: nothing inside them is converted"
            )
    _drop_unused_submodules(root)
    root.graph.lint()
    root.recompile()


def higher_order_name(target: Any) -> str:
    """The name of a higher-order op, "" for anything else."""
    return str(target._name) if isinstance(target, torch._ops.HigherOrderOperator) else ""


def outputs_of(graph: fx.Graph) -> tuple[Any, ...]:
    """What a flat graph returns, in order."""
    leaves: Any = graph.output_node().args[0]
    return tuple(leaves)


def is_marker(node: fx.Node) -> bool:
    """Whether a node enters or leaves a region rather than computing."""
    return node.target in (
        torch.amp.autocast_mode._enter_autocast,
        torch.amp.autocast_mode._exit_autocast,
        torch._C._set_grad_enabled,
    )


def _strip_nesting(root: fx.GraphModule) -> None:
    """Replace export's code generator: flat placeholders in, a flat tuple out."""
    root.graph.set_codegen(fx.graph.CodeGen())
    output = root.graph.output_node()
    result = output.args[0]
    output.args = (tuple(result) if isinstance(result, (tuple, list)) else (result,),)


def _checks_example(node: fx.Node) -> bool:
    if node.op == "call_module" and str(node.target) in _CHECKS:
        return True
    return node.target is torch.ops.aten._assert_tensor_metadata.default


def _inline_one(root: fx.GraphModule) -> bool:
    """Inline the first autocast or grad-mode region; false when none is left."""
    for node in root.graph.nodes:
        name = higher_order_name(node.target)
        if name == _AUTOCAST:
            _inline(root, node, "autocast", node.args[:4], node.args[4], node.args[5:])
            return True
        if name == _GRAD:
            _inline(root, node, "grad", node.args[:1], node.args[1], node.args[2:])
            return True
    return False


def _inline(
    root: fx.GraphModule, node: fx.Node, kind: str, setting: tuple[Any, ...], body: Any, operands: tuple[Any, ...]
) -> None:
    graph = root.graph
    module = root.get_submodule(str(body.target))
    assert isinstance(module, fx.GraphModule)
    outer = str(node.meta.get("region", ""))
    inside = _region_name(setting) if kind == "autocast" else outer
    with graph.inserting_before(node):
        enter = _enter(graph, kind, setting)
        results = _copy_body(graph, module, operands, inside)
        _leave(graph, kind, setting, enter)
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)
    if not body.users:
        graph.erase_node(body)


def _enter(graph: fx.Graph, kind: str, setting: tuple[Any, ...]) -> fx.Node:
    if kind == "autocast":
        return graph.call_function(torch.amp.autocast_mode._enter_autocast, tuple(setting))
    return graph.call_function(torch._C._set_grad_enabled, (setting[0],))


def _leave(graph: fx.Graph, kind: str, setting: tuple[Any, ...], enter: fx.Node) -> None:
    if kind == "autocast":
        graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    else:  # export nests regions properly, so leaving one restores the opposite setting
        graph.call_function(torch._C._set_grad_enabled, (not setting[0],))


def _copy_body(graph: fx.Graph, module: fx.GraphModule, operands: tuple[Any, ...], region: str) -> Any:
    """Copy the nodes of a region's body before the insertion point; returns what its output lists."""
    mapping: dict[fx.Node, Any] = {}
    inputs = iter(operands)
    for inner in module.graph.nodes:
        if inner.op == "placeholder":
            mapping[inner] = next(inputs)
        elif inner.op == "output":
            return fx.map_arg(inner.args[0], lambda n: mapping[n])
        else:
            copied = graph.node_copy(inner, lambda n: mapping[n])
            copied.meta.setdefault("region", region)
            if inner.op in ("get_attr", "call_module"):
                copied.target = _adopt(graph, module, str(inner.target))
            mapping[inner] = copied
    raise AssertionError("a region without an output")


def _adopt(graph: fx.Graph, module: fx.GraphModule, target: str) -> str:
    """Move what a body's `get_attr` names (a nested body, a constant) to the root under a free name."""
    root = graph.owning_module
    assert root is not None
    value = getattr(module, target)
    name = target
    while hasattr(root, name) and getattr(root, name) is not value:
        name = f"{name}_"
    setattr(root, name, value)
    return name


def _region_name(setting: tuple[Any, ...]) -> str:
    device, low, enabled = setting[0], setting[1], setting[2]
    if not enabled:
        return f"autocast {device} off"
    return f"autocast {device} {format_of(low) if low is not None else 'default'}"


def _drop_unused_submodules(root: fx.GraphModule) -> None:
    """Delete the bodies that were inlined and the guards; modules that hold state stay, used or not."""
    used = {str(node.target) for node in root.graph.nodes if node.op in ("get_attr", "call_module")}
    for name, child in list(root.named_children()):
        spent = isinstance(child, fx.GraphModule) or type(child).__name__ == "GuardsFn"
        if spent and name not in used:
            delattr(root, name)
