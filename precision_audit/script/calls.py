"""Calls in a script: whose they are, and into which function of the file they lead.

Takes a walk and a call; gives its value. A function, method or class of the file is followed with its arguments bound,
as deep as the calls go (never into itself); torch's own are handed to `torch_calls` and `methods`. A call that leads
out of the file with an optimizer in its hands is noted as `foreign`: it may do anything to it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precision_audit.script import known
from precision_audit.script.conditions import Atom
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
    from precision_audit.script import expressions as ex
    from precision_audit.script import methods

    if isinstance(node.func, ast.Attribute):
        if _is_super(node.func.value):
            return _super(walk, node)
        owner = ex.evaluate(walk, node.func.value)
        name = node.func.attr
        own = owner.attributes.get(name) or method(walk, owner, name)
        if own is None and owner.kind in ("unknown", "instance", "dotted"):
            own = ex.attribute(walk, owner, name, node.func)
        if own is None or own.role == "unknown":
            return methods.call(walk, node, owner, name, arguments(walk, node))
        return invoke(walk, node, own, arguments(walk, node))
    callee = ex.evaluate(walk, node.func)
    return invoke(walk, node, callee, arguments(walk, node))


def arguments(walk: Walk, node: ast.Call) -> Arguments:
    from precision_audit.script import expressions as ex

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
    from precision_audit.script import methods, torch_calls

    if callee.kind in ("function", "bound"):
        return follow(walk, callee, given)
    if callee.kind == "class":
        return instantiate(walk, callee, given)
    if callee.kind == "dotted":
        return torch_calls.call(walk, node, callee.name, given)
    if callee.kind == "partial":
        bound: Arguments = callee.scope
        merged = Arguments([*bound.positional, *given.positional], {**bound.keywords, **given.keywords}, given.open)
        return invoke(walk, node, callee.items[0], merged)
    own = method(walk, callee, "__call__") if callee.kind == "instance" else None
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
    from precision_audit.script import expressions as ex
    from precision_audit.script.walk import Frame, Scope

    node = function.node
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if node in walk.following or len(walk.following) >= _DEEPEST:
        return Value()
    walk.followed.add(node)
    if not isinstance(node, ast.Lambda) and _is_generator(node):
        entering = any("autocast" in ast.unparse(each) for each in node.body)
        if not entering:
            return Value(node=node)
        return Value("autocast", node=node, enabled=None)
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
    return _returned(returned)


def instantiate(walk: Walk, kind: Value, given: Arguments | None) -> Value:
    """An object of a class of the file."""
    made = Value(_kind_of(walk, kind), kind.name, kind.node, scope=kind)
    if made.kind == "optimizer" and given is not None:
        first = given.get(0, "params")
        made.of = first.of if first is not None else ()
    kind.attributes.setdefault("an instance", made)
    start = method(walk, made, "__init__")
    if start is not None and made.kind in ("instance", "model"):
        follow(walk, start, given)
    return made


def method(walk: Walk, owner: Value, name: str) -> Value | None:
    """A method of a class of the file; of a property, what it returns."""
    kind = owner if owner.kind == "class" else owner.scope
    if not isinstance(kind, Value) or kind.kind != "class":
        return None
    for each in _family(walk, kind):
        assert isinstance(each.node, ast.ClassDef)
        for statement in each.node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name:
                decorators = {ast.unparse(decorator) for decorator in statement.decorator_list}
                free = "staticmethod" in decorators or owner.kind == "class"
                found = Value("bound", name, statement, items=() if free else (owner,), scope=each.scope)
                is_property = bool(decorators & {"property", "cached_property", "functools.cached_property"})
                return follow(walk, found, Arguments()) if is_property else found
    return None


def bases(walk: Walk, kind: Value) -> list[Value]:
    """The base classes, as far as they are names."""
    from precision_audit.script import expressions as ex

    assert isinstance(kind.node, ast.ClassDef)
    return [ex.evaluate(walk, base) for base in kind.node.bases if isinstance(base, ast.Name | ast.Attribute)]


def _family(walk: Walk, kind: Value) -> list[Value]:
    """The class and those of its ancestors that are in the file."""
    found = [kind]
    for each in found:
        found += [base for base in bases(walk, each) if base.kind == "class" and base not in found]
    return found


def _kind_of(walk: Walk, kind: Value) -> str:
    for each in _family(walk, kind):
        for base in bases(walk, each):
            if base.kind != "dotted":
                continue
            if base.name in known.SCALERS:
                return "scaler"
            if known.OPTIMIZER.match(base.name):
                return "optimizer"
            if known.CRITERION.match(base.name):
                return "instance"
            if known.MODULE_BASE.search(base.name):
                return "instance" if "Loss" in kind.name or "Criterion" in kind.name else "model"
    return "instance"


def _bind_parameters(walk: Walk, function: Value, given: Arguments | None) -> None:
    node = function.node
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    from precision_audit.script import expressions as ex

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
    from precision_audit.script.expressions import each_of

    lists = [each_of(value) for value in given.all()]
    if not lists or any(each is None for each in lists):
        return Value(varies=True)
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


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _super(walk: Walk, node: ast.Call) -> Value:
    """A method of a base class that is in the file."""
    assert isinstance(node.func, ast.Attribute)
    given = arguments(walk, node)
    current = walk.following[-1] if walk.following else None
    receiver = next((walk.scope.find(name) for name in ("self",) if walk.scope.find(name) is not None), None)
    if receiver is None or not isinstance(receiver.scope, Value):
        return Value()
    family = _family(walk, receiver.scope)
    at = next((i for i, each in enumerate(family) if current in getattr(each.node, "body", ())), len(family))
    for each in family[at + 1 :]:
        found = method(walk, each, node.func.attr)
        if found is not None:
            found.items = (receiver,)
            return follow(walk, found, given)
    return Value()
