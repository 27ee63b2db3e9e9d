"""Classes of a script: their objects, their methods, and what kind of thing they are.

Takes a walk and a class of the file; gives values. A class is a model where a base of its is an nn.Module, an optimizer
or a scaler where one is torch's; base classes that are in the file are followed, others are known by name only.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from precision_audit.script import calls, known
from precision_audit.script import expressions as ex
from precision_audit.script.values import Value

if TYPE_CHECKING:
    from precision_audit.script.walk import Walk


def instantiate(walk: Walk, kind: Value, given: calls.Arguments | None) -> Value:
    """An object of a class of the file."""
    made = Value(_kind_of(walk, kind), kind.name, kind.node, scope=kind)
    if made.kind == "optimizer" and given is not None:
        first = given.get(0, "params")
        made.of = first.of if first is not None else ()
    kind.attributes.setdefault("an instance", made)
    start = method(walk, made, "__init__")
    if start is not None and made.kind in ("instance", "model"):
        calls.follow(walk, start, given)
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
                receiver = (kind,) if "classmethod" in decorators else () if free else (owner,)
                found = Value("bound", name, statement, items=receiver, scope=each.scope)
                is_property = bool(decorators & {"property", "cached_property", "functools.cached_property"})
                return calls.follow(walk, found, calls.Arguments()) if is_property else found
    return None


def _bases(walk: Walk, kind: Value) -> list[Value]:
    """The base classes, as far as they are names."""
    assert isinstance(kind.node, ast.ClassDef)
    return [ex.evaluate(walk, base) for base in kind.node.bases if isinstance(base, ast.Name | ast.Attribute)]


def _family(walk: Walk, kind: Value) -> list[Value]:
    """The class and those of its ancestors that are in the file."""
    found = [kind]
    for each in found:
        found += [base for base in _bases(walk, each) if base.kind == "class" and base not in found]
    return found


def _kind_of(walk: Walk, kind: Value) -> str:
    for each in _family(walk, kind):
        for base in _bases(walk, each):
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


def is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def inherited(walk: Walk, node: ast.Call) -> Value:
    """A method of a base class that is in the file."""
    assert isinstance(node.func, ast.Attribute)
    given = calls.arguments(walk, node)
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
            return calls.follow(walk, found, given)
    return Value()
