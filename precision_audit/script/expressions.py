"""What an expression of a script stands for, and what computing it does.

Takes a walk and a node; gives the `Value`, and leaves the events of the calls within it in the walk's trace. Follows
Python's order of evaluation where it matters (receiver, arguments, call).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from precision_audit.script import calls, classes, deciding, elements
from precision_audit.script.names import canonical
from precision_audit.script.values import Value, none, same

if TYPE_CHECKING:
    from precision_audit.script.walk import Walk

_WRAPPED = ("module", "_orig_mod", "_forward_module")  # the model inside DistributedDataParallel and torch.compile


def evaluate(walk: Walk, node: ast.expr | None) -> Value:
    """The value of any expression; unknown where the text does not tell."""
    walk.steps += 1
    if node is None:
        return none()
    made = _BY_TYPE.get(type(node))
    if made is not None:
        return made(walk, node)
    children = [evaluate(walk, child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return Value(node=node, varies=any(child.varies for child in children))


def bind_target(walk: Walk, target: ast.expr, value: Value) -> None:
    """Bind a name, an attribute, or each name of a tuple."""
    if isinstance(target, ast.Name):
        walk.bind(walk.scope.names, target.id, _named(value, target.id))
    elif isinstance(target, ast.Attribute):
        walk.bind(evaluate(walk, target.value).attributes, target.attr, _named(value, target.attr))
    elif isinstance(target, ast.Tuple | ast.List):
        fits = len(value.items) == len(target.elts) and value.kind == "sequence"
        for index, each in enumerate(target.elts):
            part = value.items[index] if fits else Value(varies=value.varies, forwards=value.forwards, of=value.of)
            if not fits and value.kind == "tensor":
                part.kind, part.low = "tensor", value.low
            bind_target(walk, each.value if isinstance(each, ast.Starred) else each, part)
    elif isinstance(target, ast.Subscript):
        walk.bind(evaluate(walk, target.value).attributes, f"[{ast.unparse(target.slice)}]", value)


def assign(walk: Walk, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
    if isinstance(node, ast.AugAssign):
        old, added = evaluate(walk, node.target), evaluate(walk, node.value)
        if old.kind == "sequence" and added.kind == "sequence":
            old.items += added.items
        elif isinstance(node.target, ast.Name) and old.kind not in ("sequence", "parameter", "grad"):
            bind_target(walk, node.target, _computed(node, node.op, old, added))
        return
    if node.value is None:
        return
    value = evaluate(walk, node.value)
    if isinstance(node.value, ast.Compare | ast.BoolOp | ast.UnaryOp) and value.kind == "unknown":
        value.enabled = deciding.condition(walk, node.value)
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Attribute) and target.attr == "grad":  # p.grad = None
            walk.emit("zero", node, evaluate(walk, target.value))
        else:
            bind_target(walk, target, value)


def entered(value: Value) -> Value:
    """What `with … as name` binds."""
    return value if value.kind in ("instance", "model") else Value(node=value.node)


def _named(value: Value, name: str) -> Value:
    """A value takes the first name it is given, by which its role can be told."""
    if value.kind == "unknown" and not value.name:
        value.name = name
    return value


def _name(walk: Walk, node: ast.Name) -> Value:
    found = walk.scope.find(node.id)
    if found is not None:
        return found if not _unsteady(walk, found, node.id) else _unknown_constant(found, node.id)
    if node.id in walk.imports:
        return Value("dotted", walk.imports[node.id], node)
    made = Value("unknown", node.id, node)
    walk.top.names.setdefault(node.id, made)
    return made


def _unsteady(walk: Walk, value: Value, name: str) -> bool:
    return value.kind == "constant" and name in walk.reassigned and not value.is_none


def _unknown_constant(value: Value, name: str) -> Value:
    """A constant whose name several lines assign: one unknown for as long as it is not assigned again."""
    return value.attributes.setdefault("unsteady", Value("unknown", name, value.node, varies=value.varies))


def _attribute(walk: Walk, node: ast.Attribute) -> Value:
    owner = evaluate(walk, node.value)
    return attribute(walk, owner, node.attr, node)


def attribute(walk: Walk, owner: Value, name: str, node: ast.expr) -> Value:
    """`owner.name`, the same value each time."""
    if name in owner.attributes:
        found = owner.attributes[name]
        return _unknown_constant(found, name) if _unsteady(walk, found, name) else found
    if owner.kind == "dotted":
        return Value("dotted", canonical(f"{owner.name}.{name}"), node)
    if owner.role == "model" and name in _WRAPPED:
        return owner
    method = classes.method(walk, owner, name)
    if method is not None:
        return method
    made = Value("unknown", name, node, varies=owner.varies, forwards=owner.forwards)
    if owner.kind in ("parameter", "tensor") and name in ("grad", "data"):
        made.kind, made.of, made.low = ("grad" if name == "grad" else "tensor"), owner.of, owner.low
        made.node = node
    elif owner.kind == "grad" and name == "data":
        return owner
    elif owner.kind == "tensor":
        made.low, made.kind, made.of = owner.low, "tensor" if owner.forwards else "unknown", owner.of
    elif name in ("weight", "bias"):
        made.kind = "parameter"
    owner.attributes[name] = made  # not journalled: reading binds nothing
    return made


def _call(walk: Walk, node: ast.Call) -> Value:
    return calls.call(walk, node)


def _binary(walk: Walk, node: ast.BinOp) -> Value:
    return _computed(node, node.op, evaluate(walk, node.left), evaluate(walk, node.right))


def _computed(node: ast.AST, op: ast.operator, left: Value, right: Value) -> Value:
    """Arithmetic on tensors gives a tensor."""
    varies = left.varies or right.varies or isinstance(op, ast.Mod)
    kind = "tensor" if "tensor" in (left.kind, right.kind) else "unknown"
    other = right if left.kind == "tensor" else left
    scales = isinstance(op, ast.Mult) and (
        "scale" in other.name.lower() or (isinstance(other.constant, int | float) and abs(other.constant) >= 8)
        or other.kind == "unknown"
    )  # fmt: skip
    lows = {each.low for each in (left, right) if each.kind == "tensor"}
    return Value(
        kind,
        node=node,
        of=tuple(dict.fromkeys((*left.of, *right.of))),
        scaled=left.scaled or right.scaled,
        low=lows.pop() if len(lows) == 1 else "",
        varies=varies,
        forwards=left.forwards | right.forwards,
        factor=left.factor or right.factor or scales,
    )


def _choice(walk: Walk, node: ast.IfExp) -> Value:
    test = deciding.condition(walk, node.test)
    if isinstance(test, bool):
        return evaluate(walk, node.body if test else node.orelse)
    made = []
    for wanted, part in ((True, node.body), (False, node.orelse)):
        walk.guards.append((test, wanted))
        made.append(evaluate(walk, part))
        walk.guards.pop()
    return same(made[0], made[1], test)


def _either(walk: Walk, node: ast.BoolOp) -> Value:
    values = [evaluate(walk, each) for each in node.values]
    return Value(node=node, varies=any(value.varies for value in values))


def _compared(walk: Walk, node: ast.Compare) -> Value:
    parts = [evaluate(walk, each) for each in (node.left, *node.comparators)]
    return Value(node=node, varies=any(part.varies for part in parts))


def _sequence(walk: Walk, node: ast.Tuple | ast.List | ast.Set) -> Value:
    items = tuple(evaluate(walk, each) for each in node.elts)
    return Value("sequence", node=node, items=items, varies=any(item.varies for item in items))


def _dictionary(walk: Walk, node: ast.Dict) -> Value:
    made = Value("sequence", node=node)
    for key, each in zip(node.keys, node.values, strict=True):
        value = evaluate(walk, each)
        made.items += (value,)
        if key is not None:
            made.attributes[f"[{ast.unparse(key)}]"] = value
    return made


def _item(walk: Walk, node: ast.Subscript) -> Value:
    owner = evaluate(walk, node.value)
    key = f"[{ast.unparse(node.slice)}]"
    if owner.kind == "sequence" and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        index = node.slice.value
        if -len(owner.items) <= index < len(owner.items):
            return owner.items[index]
    if key not in owner.attributes:
        tensor = owner.kind == "tensor"
        made = Value("tensor" if tensor else "unknown", node=node, varies=owner.varies, forwards=owner.forwards)
        made.low, made.of, made.scaled = owner.low, owner.of, owner.scaled
        made.name = str(node.slice.value) if isinstance(node.slice, ast.Constant) else owner.name
        owner.attributes[key] = made
    return owner.attributes[key]


def _comprehension(walk: Walk, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
    return elements.comprehension(walk, node)


def _yield(walk: Walk, node: ast.Yield | ast.YieldFrom) -> Value:
    return elements.yielded(walk, node)


def _lambda(walk: Walk, node: ast.Lambda) -> Value:
    return Value("function", "<lambda>", node, scope=walk.scope)


def _constant(_: Walk, node: ast.Constant) -> Value:
    return Value("constant", node=node, constant=node.value)


def _walrus(walk: Walk, node: ast.NamedExpr) -> Value:
    value = evaluate(walk, node.value)
    bind_target(walk, node.target, value)
    return value


def _inner(walk: Walk, node: ast.Await | ast.Starred) -> Value:
    return evaluate(walk, node.value)


_BY_TYPE: dict[type[ast.expr], Callable[[Walk, Any], Value]] = {
    ast.Name: _name, ast.Attribute: _attribute, ast.Call: _call, ast.BinOp: _binary, ast.IfExp: _choice,
    ast.BoolOp: _either, ast.Compare: _compared, ast.Tuple: _sequence, ast.List: _sequence, ast.Set: _sequence,
    ast.Dict: _dictionary, ast.Subscript: _item, ast.ListComp: _comprehension, ast.GeneratorExp: _comprehension,
    ast.SetComp: _comprehension, ast.Lambda: _lambda, ast.Constant: _constant, ast.NamedExpr: _walrus,
    ast.Yield: _yield, ast.YieldFrom: _yield, ast.Await: _inner, ast.Starred: _inner,
}  # fmt: skip
