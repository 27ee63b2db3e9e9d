"""Calls in a script: whose they are, and into which function of the file they lead.

Takes a walk and a call; gives its value. A function, method or class of the file is followed with its arguments bound,
as deep as the calls go (never into itself); torch's own are handed to `torch_calls` and `methods`. A call that leads
out of the file with an optimizer in its hands is noted as `foreign`: it may do anything to it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precision_audit.script import classes, elements, methods, torch_calls
from precision_audit.script import expressions as ex
from precision_audit.script.conditions import Atom
from precision_audit.script.frames import Frame, Scope
from precision_audit.script.values import Value, none, same

if TYPE_CHECKING:
    from precision_audit.script.walk import Walk

_DEEPEST = 12
_HARMLESS = ("save", "load", "print", "log", "checkpoint", "len", "isinstance", "hasattr", "getattr", "setattr", "type",
             "warmup", "lr", "repr", "str", "format", "append", "watch", "state_dict", "broadcast", "add_param_group",
             "info", "debug")  # fmt: skip
_THROUGH = (
    "list",
    "tuple",
    "iter",
    "reversed",
    "sorted",
    "set",
    "tqdm",
    "chain",
    "filter",
)  # elements stay what they are


@dataclass
class Arguments:
    """What is handed over, with the nodes; `open`: there are *args or **kwargs beside."""

    positional: list[tuple[Value, ast.expr]] = field(default_factory=list)
    keywords: dict[str, tuple[Value, ast.expr]] = field(default_factory=dict)
    open: bool = False

    def get(self, place: int, *names: str) -> Value | None:
        """An argument by place (negative: by name only) or name."""
        if 0 <= place < len(self.positional):
            return self.positional[place][0]
        return next((self.keywords[name][0] for name in names if name in self.keywords), None)

    def node(self, place: int, name: str) -> ast.expr | None:
        if 0 <= place < len(self.positional):
            return self.positional[place][1]
        return self.keywords[name][1] if name in self.keywords else None

    def all(self) -> list[Value]:
        return [value for value, _ in (*self.positional, *self.keywords.values())]


def call(walk: Walk, node: ast.Call) -> Value:
    if isinstance(node.func, ast.Attribute):
        if classes.is_super(node.func.value):
            return classes.inherited(walk, node)
        owner = ex.evaluate(walk, node.func.value)
        name = node.func.attr
        own = owner.attributes.get(name) or classes.method(walk, owner, name)
        if own is None and owner.kind in ("unknown", "instance", "dotted"):
            own = ex.attribute(walk, owner, name, node.func)
        if own is None or own.role == "unknown":
            return methods.call(walk, node, owner, name, arguments(walk, node))
        made = invoke(walk, node, own, arguments(walk, node))
        if owner.kind == "optimizer" and own.kind == "bound" and name == "step":  # the file's own class
            walk.emit("step", node, owner)
        return made
    callee = ex.evaluate(walk, node.func)
    return invoke(walk, node, callee, arguments(walk, node))


def arguments(walk: Walk, node: ast.Call) -> Arguments:
    made = Arguments()
    for each in node.args:
        value = ex.evaluate(walk, each)
        if isinstance(each, ast.Starred):
            made.open = made.open or value.kind != "sequence"
            made.positional += [(item, each) for item in value.items]
        else:
            made.positional.append((value, each))
    for keyword in node.keywords:
        value = ex.evaluate(walk, keyword.value)
        if keyword.arg is None:
            made.open = True
        else:
            made.keywords[keyword.arg] = (value, keyword.value)
    return made


def invoke(walk: Walk, node: ast.Call, callee: Value, given: Arguments) -> Value:
    """Call a value."""
    if callee.kind in ("function", "bound"):
        return follow(walk, callee, given)
    if callee.kind == "class":
        return classes.instantiate(walk, callee, given)
    if callee.kind == "dotted":
        return torch_calls.call(walk, node, callee.name, given)
    if callee.kind == "partial" and callee.items:
        bound: Arguments = callee.scope
        merged = Arguments([*bound.positional, *given.positional], {**bound.keywords, **given.keywords}, given.open)
        return invoke(walk, node, callee.items[0], merged)
    own = classes.method(walk, callee, "__call__") if callee.kind == "instance" else None
    if own is not None:
        return follow(walk, own, given)
    if callee.role == "model":
        return methods.forward(walk, node, callee, given)
    if callee.role == "loss":
        return methods.loss(walk, node, callee.name, given)
    if callee.kind in ("autocast", "context"):  # a decorator object
        return given.get(0) or Value()
    return leave(walk, node, callee.name, given)


def leave(walk: Walk, node: ast.Call, name: str, given: Arguments) -> Value:
    """A call of something that is not in the file."""
    if name in ("enumerate", "zip"):
        return _paired(name, given)
    first = given.get(1 if name == "filter" else 0)
    if name.rpartition(".")[2] in _THROUGH and first is not None:
        if name.endswith("chain"):
            return Value("parameters", of=tuple(model for each in given.all() for model in each.of))
        return first
    if "zero" in name and "grad" in name:
        walk.emit("zero", node, None)
    harmless = any(word in name.lower() for word in _HARMLESS)
    for value in given.all():
        for each in (value, *value.items):
            if each.role == "optimizer" and not harmless:
                walk.emit("foreign", node, each)
    return Value(
        node=node,
        name=name.rpartition(".")[2] if "cast" in name else "",
        varies=any(value.varies for value in given.all()),
        forwards=frozenset().union(*(value.forwards for value in given.all())),
    )


def follow(walk: Walk, function: Value, given: Arguments | None) -> Value:
    """Walk a function of the file; `given` None: it is called from elsewhere, with we do not know what."""
    node = function.node
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if node in walk.following or len(walk.following) >= _DEEPEST:
        return Value()
    walk.followed.add(node)
    if not isinstance(node, ast.Lambda) and _is_generator(node):
        if any("contextmanager" in ast.unparse(each) for each in node.decorator_list):
            entering = any("autocast" in ast.unparse(each) for each in node.body)
            return Value("autocast" if entering else "unknown", node=node, enabled=None)
        walk.followed.discard(node)  # its body runs where it is looped over
        return Value("generator", function.name, node, items=(function,), scope=given)
    return _returned(_walked(walk, function, given))


def drawn(walk: Walk, generator: Value) -> Value:
    """Walk the body of a generator of the file, in the loop over it; gives what it yields."""
    (function,) = generator.items
    node = function.node
    if node in walk.following or len(walk.following) >= _DEEPEST:
        return Value(varies=True)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    walk.followed.add(node)
    walk.yielded.append([])
    _walked(walk, function, generator.scope)
    return _returned(walk.yielded.pop() or [Value(varies=True)])


def _walked(walk: Walk, function: Value, given: Arguments | None) -> list[Value]:
    """Walk a body with its arguments bound; gives what each of its returns gives."""
    node = function.node
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    outer, contexts = walk.scope, len(walk.contexts)
    walk.scope = Scope(outer=function.scope)
    _bind_parameters(walk, function, given)
    walk.frames.append(Frame(len(walk.guards)))
    walk.following.append(node)
    if isinstance(node, ast.Lambda):
        returned = [ex.evaluate(walk, node.body)]
    else:
        walk.functions.append(node.name)
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                walk.enter(ex.evaluate(walk, decorator), decorator)
        walk.block(node.body)
        walk.functions.pop()
        returned = walk.frames[-1].returned
    walk.following.pop()
    walk.frames.pop()
    walk.scope = outer
    del walk.contexts[contexts:]
    return returned


def _bind_parameters(walk: Walk, function: Value, given: Arguments | None) -> None:
    node = function.node
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    defaults = dict(zip(reversed(names), reversed(node.args.defaults), strict=False))
    defaults |= {
        each.arg: value for each, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value
    }
    bound = dict(zip(names, function.items, strict=False)) if function.kind == "bound" else {}
    if given is not None:
        left = names[len(bound) :]
        bound |= dict(zip(left, (value for value, _ in given.positional), strict=False))
        bound |= {name: value for name, (value, _) in given.keywords.items()}
    for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        name = each.arg
        value = bound.get(name)
        if value is None and given is not None and not given.open and name in defaults:
            value = ex.evaluate(walk, defaults[name])
        walk.scope.names[name] = value if value is not None else Value("unknown", name, node)
        if walk.scope.names[name].kind == "unknown" and not walk.scope.names[name].name:
            walk.scope.names[name].name = name
    for rest in (node.args.vararg, node.args.kwarg):
        if rest is not None:
            walk.scope.names[rest.arg] = Value("unknown", rest.arg, node)


def _returned(values: list[Value]) -> Value:
    made = values[0] if values else none()
    for number, each in enumerate(values[1:]):
        made = same(made, each, Atom(f"return {made.number} {number}"))
    return made


def _paired(name: str, given: Arguments) -> Value:
    """enumerate and zip of lists that are written out; of others, what varies."""
    lists = [elements.each_of(value) for value in given.all()]
    if not lists or any(each is None for each in lists):
        return Value(varies=True, items=tuple(each for each in given.all() if each.kind == "generator"))
    if name == "enumerate":
        return Value("sequence", items=tuple(Value("sequence", items=(Value(), each)) for each in lists[0] or ()))
    return Value(
        "sequence", items=tuple(Value("sequence", items=each) for each in zip(*(x or () for x in lists), strict=False))
    )


def _is_generator(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    pending: list[ast.AST] = list(node.body)
    while pending:
        each = pending.pop()
        if isinstance(each, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(each))
    return False
