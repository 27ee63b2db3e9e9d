"""Records of a captured graph: one `Op` per computing node, with stable keys, and who shares memory with whom.

Takes a flat, cleaned FX graph; gives the `Graph` and the map from op key to node. Keys are
`module.path/op#occurrence`, so that inserting an unrelated layer renames nothing. Never runs the model; reads only what
export left on the nodes.

Not ops: `getitem` on an op with several outputs (its consumers read the value `key:i`), arithmetic on sizes, asserts,
region markers. They carry no format and stay in the FX graph untouched.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from precision_audit import ops
from precision_audit.capture.aliases import alias_classes, storages
from precision_audit.capture.handwritten import PREFIX, class_of
from precision_audit.capture.names import Namer, channels_last, example_size
from precision_audit.capture.regions import higher_order_name, is_marker, outputs_of
from precision_audit.capture.sources import source_of
from precision_audit.formats import format_of, is_float
from precision_audit.records import Graph, Mode, Op, Operand, Source, Tensor

_SLICE = re.compile(r"\.slice\([^)]*\)")
_LEVELS = {f"_{name}_{step}_nesting" for name in ("vmap", "jvp", "grad") for step in ("increment", "decrement")}
_AGAIN = re.compile(r"@\d+")  # export marks the second call of a module as `fc@1`


def build(
    root: fx.GraphModule,
    mode: Mode,
    follows: frozenset[fx.Node],
    labels: Mapping[str, str],
    notes: tuple[str, ...],
) -> tuple[Graph, dict[str, fx.Node]]:
    """Records and nodes of `root.graph`; `labels` names symbolic sizes, `follows` marks literals of the example's."""
    namer = Namer(labels)
    values: dict[fx.Node, str] = {}
    made: dict[str, Op] = {}
    nodes: dict[str, fx.Node] = {}
    inside_transform = 0
    for node in root.graph.nodes:
        inside_transform += _transform_step(node)
        if node.op == "call_function" and node.target is operator.getitem and node.args[0] in values:
            values[node] = _member(values[node.args[0]], made, int(node.args[1]))
            continue
        op = _op_of(node, root, mode, namer, values, node in follows, inside_transform > 0)
        if op is not None:
            values[node] = op.key
            made[op.key] = op
            nodes[op.key] = node
    return _assemble(root, mode, namer, values, made, nodes, notes), nodes


def _assemble(
    root: fx.GraphModule,
    mode: Mode,
    namer: Namer,
    values: dict[fx.Node, str],
    made: dict[str, Op],
    nodes: dict[str, fx.Node],
    notes: tuple[str, ...],
) -> Graph:
    classes, state = alias_classes(made.values(), nodes)
    ops_in_order = _mark_likeness(_mark_state(op, state) for op in made.values())
    return Graph(
        ops=ops_in_order,
        outputs=tuple(values.get(leaf, "") if isinstance(leaf, fx.Node) else "" for leaf in outputs_of(root.graph)),
        mode=mode,
        aliases=classes,
        storages=storages(root, (op.key for op in ops_in_order if op.kind in ("parameter", "buffer", "constant"))),
        symbols=namer.symbols(),
        notes=notes,
    )


def _op_of(
    node: fx.Node,
    root: fx.GraphModule,
    mode: Mode,
    namer: Namer,
    values: Mapping[fx.Node, str],
    follows: bool,
    inside_transform: bool,
) -> Op | None:
    if node.op == "placeholder":
        return _state_op(node, namer, str(node.target), "input")
    if node.op == "get_attr":
        made = _state_op(node, namer, str(node.target), _state_kind(root, str(node.target)), _attribute(root, node))
        return dataclasses.replace(made, follows=follows) if made else None
    if node.op != "call_function" or is_marker(node):
        return None
    outputs = _outputs(node.meta.get("val"), namer)
    if outputs is None or not any(tensor.format for tensor in outputs):
        return None
    module, module_type = _module_of(node)
    name, target = _names(node)
    row = ops.row(name)
    operands, attributes = _arguments(node, values)
    region = str(node.meta.get("region", ""))
    return Op(
        key=namer.key(module, name),
        target=target,
        op=name,
        kind=row.kind if row else "hand_written" if class_of(node.target) else "unknown",
        module=module,
        module_type=module_type,
        operands=operands,
        outputs=outputs,
        attributes=attributes,
        source=_source(node),
        mutates=_mutated_argument(node),
        follows=follows,
        region=region,
        fixed=_why_fixed(outputs, attributes, follows, region or ("transform" if inside_transform else ""))
        or ("hand-written" if class_of(node.target) else ""),
    )


def _state_op(node: fx.Node, namer: Namer, key: str, kind: str, value: Any = None) -> Op | None:
    value = node.meta.get("val", value)
    if not isinstance(value, torch.Tensor):
        return None
    tensor = _tensor(value, namer)
    target = "placeholder" if kind == "input" else "get_attr"
    return Op(key, target, target, kind, key.rpartition(".")[0], "", (), (tensor,))


def _attribute(root: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = root
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _state_kind(root: fx.GraphModule, target: str) -> str:
    module_path, _, name = target.rpartition(".")
    module = root.get_submodule(module_path)
    if name in module._parameters:
        return "parameter"
    return "buffer" if name in module._buffers and name not in module._non_persistent_buffers_set else "constant"


def _names(node: fx.Node) -> tuple[str, str]:
    """Base name as the op table has it, and the full target."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        namespace = target.namespace
        base = target._schema.name.split("::")[1]
        if base.endswith("_") and not base.endswith("__") and base not in ops.OPS:
            base = base[:-1]
        return (base if namespace == "aten" else f"{namespace}::{base}"), str(target)
    if higher_order := higher_order_name(target):
        return higher_order, f"higher_order.{higher_order}"
    name = getattr(target, "__name__", str(target))
    if applied := class_of(target):
        return f"{PREFIX}{name}", f"{applied.__module__}.{applied.__qualname__}"
    return name, f"{getattr(target, '__module__', '')}.{name}"


def _module_of(node: fx.Node) -> tuple[str, str]:
    stack = node.meta.get("nn_module_stack") or {}
    for path, kind in reversed(list(stack.values())):
        if not str(path).startswith("_empty"):
            name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
            clean = _AGAIN.sub("", _SLICE.sub("", str(path)))
            return clean.removeprefix("L__self__").lstrip("."), name
    return "", ""


def _source(node: fx.Node) -> Source | None:
    trace = node.meta.get("stack_trace")
    return source_of(trace) if trace else None


def _outputs(value: Any, namer: Namer) -> tuple[Tensor, ...] | None:
    if isinstance(value, torch.Tensor):
        return (_tensor(value, namer),)
    if isinstance(value, (tuple, list)):
        return tuple(_tensor(v, namer) if isinstance(v, torch.Tensor) else Tensor("", (), ()) for v in value)
    return None


def _tensor(value: torch.Tensor, namer: Namer) -> Tensor:
    shape = tuple(namer.size(size) for size in value.shape)
    example = tuple(int(size) if isinstance(size, int) else example_size(size) for size in value.shape)
    gradient, last = bool(value.requires_grad), channels_last(value, example)
    return Tensor(format_of(value.dtype), shape, example, gradient, last)


def _member(value: str, made: Mapping[str, Op], index: int) -> str:
    op = made.get(value)
    return value if op is None or len(op.outputs) == 1 else f"{value}:{index}"


def _arguments(
    node: fx.Node, values: Mapping[fx.Node, str]
) -> tuple[tuple[Operand, ...], tuple[tuple[str, object], ...]]:
    """Tensor operands in schema order, and every other argument by its schema name."""
    operands: list[Operand] = []
    attributes: list[tuple[str, object]] = []
    for name, argument in named_arguments(node):
        found = [leaf for leaf in _flat(argument) if isinstance(leaf, fx.Node) and leaf in values]
        if found:
            operands.extend(Operand(values[leaf], name) for leaf in found)
        elif not any(isinstance(leaf, fx.Node) for leaf in _flat(argument)):
            attributes.append((name, _plain(argument)))
    return tuple(operands), tuple(attributes)


def named_arguments(node: fx.Node) -> list[tuple[str, Any]]:
    """Positional and keyword arguments of a node with the names of the op's schema."""
    if isinstance(node.target, torch._ops.OpOverload):
        names = [argument.name for argument in node.target._schema.arguments]
    else:
        names = []
    named = [(names[i] if i < len(names) else f"arg{i}", argument) for i, argument in enumerate(node.args)]
    return named + list(node.kwargs.items())


def _flat(argument: Any) -> Iterable[Any]:
    if isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _flat(item)
    else:
        yield argument


def _plain(argument: Any) -> object:
    if isinstance(argument, torch.dtype):
        return format_of(argument)
    if isinstance(argument, (tuple, list)):
        return tuple(_plain(item) for item in argument)
    if isinstance(argument, (bool, int, float, str, type(None))):
        return argument
    return str(argument)


def _mutated_argument(node: fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        if node.target is torch.ops.aten.detach_.default:  # changes the autograd history, not the numbers
            return ""
        return next((a.name for a in node.target._schema.arguments if a.alias_info and a.alias_info.is_write), "")
    return ""


def _why_fixed(
    outputs: tuple[Tensor, ...], attributes: tuple[tuple[str, object], ...], follows: bool, region: str
) -> str:
    floats = [tensor.format for tensor in outputs if is_float(tensor.format)]
    if region:
        return "region"
    if not floats:
        return "integer"
    explicit = any(isinstance(value, str) and is_float(value) for name, value in attributes if name.endswith("dtype"))
    return "explicit cast" if explicit and not follows else ""


def _mark_state(op: Op, state: frozenset[str]) -> Op:
    if op.fixed in ("", "explicit cast") and any(value in state for value in op.values):
        return dataclasses.replace(op, fixed="state")
    return op


def _mark_likeness(ops_in_order: Iterable[Op]) -> tuple[Op, ...]:
    """`x.type_as(y)` follows y: where y's format is the user's own, by a cast or in a buffer, this one's is too. Not by
    a cast that changed nothing: `y.float()` of an fp32 y is y itself, so that export reads the cast for both."""
    own: set[str] = set()
    formats: dict[str, str] = {}
    found = []
    for op in ops_in_order:
        like = [operand.value for operand in op.operands if operand.argument == "other" and op.op in ops.LIKE]
        if not op.fixed and not own.isdisjoint(like):
            op = dataclasses.replace(op, fixed="explicit cast")  # noqa: PLW2901
        idle = op.op == "to" and [formats.get(o.value) for o in op.operands[:1]] == [op.outputs[0].format]
        if op.kind in ("buffer", "constant") or (op.fixed not in ("", "integer") and not idle):
            own.update(op.values)
        formats.update(zip(op.values, (tensor.format for tensor in op.outputs), strict=True))
        found.append(op)
    return tuple(found)


def _transform_step(node: fx.Node) -> int:
    """+1 where a level of vmap, jvp or grad is entered, -1 where it is left: numbers inside are batched or carry their
    derivative, and stay as captured."""
    name = getattr(node.target, "__name__", "")
    if name not in _LEVELS:
        return 0
    return 1 if name.endswith("_increment_nesting") else -1
