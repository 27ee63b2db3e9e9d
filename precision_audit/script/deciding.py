"""The test of an `if` as a formula, as far as the text decides it.

Takes a walk and the test's node; gives a `Formula`: True or False where constants decide, else atoms. A scaler that was
made under `use_amp` and is None otherwise makes `scaler is not None` the same test as `use_amp`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from precision_audit.script import expressions as ex
from precision_audit.script import known
from precision_audit.script.conditions import Atom, Formula, joined, negated
from precision_audit.script.values import UNSET, Value

if TYPE_CHECKING:
    from precision_audit.script.walk import Walk


def condition(walk: Walk, node: ast.expr) -> Formula:
    """A test as a formula."""
    if isinstance(node, ast.BoolOp):
        word = "and" if isinstance(node.op, ast.And) else "or"
        return joined(word, [condition(walk, each) for each in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return negated(condition(walk, node.operand))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _comparison(walk, node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "is_enabled":
        value = ex.evaluate(walk, node.func.value)
        return Atom(f"enabled {value.number}")
    value = ex.evaluate(walk, node)
    if value.kind == "constant" and value.constant is not UNSET:
        return bool(value.constant)
    if value.kind in ("scaler", "optimizer", "scheduler", "model", "instance", "function", "autocast", "context"):
        return value.there
    if isinstance(value.enabled, Atom | tuple):  # a name that holds a test
        return value.enabled
    return Atom(f"{described(walk, node)}", value.varies)


def _comparison(walk: Walk, node: ast.Compare) -> Formula:
    left, right = ex.evaluate(walk, node.left), ex.evaluate(walk, node.comparators[0])
    op = node.ops[0]
    opposite = isinstance(op, ast.IsNot | ast.NotEq | ast.NotIn)
    if isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
        answer = _equal(walk, left, right, node)
    else:
        answer = Atom(described(walk, node).replace(" not in ", " in "), left.varies or right.varies)
    return negated(answer) if opposite else answer


def _equal(walk: Walk, left: Value, right: Value, node: ast.Compare) -> Formula:
    if right.is_none or left.is_none:
        value = left if right.is_none else right
        if value.is_none:
            return True
        if value.kind not in ("unknown", "constant"):
            return negated(value.there)
        return False if value.kind == "constant" else Atom(f"{value.name} is None {value.number}", value.varies)
    if left.name == "__name__":  # what the file does when it is run
        return bool(right.constant == "__main__")
    if left.kind == right.kind == "constant" and UNSET not in (left.constant, right.constant):
        return bool(left.constant == right.constant)
    dtypes = [known.FORMATS.get(each.name) for each in (left, right) if each.kind == "dotted"]
    if len(dtypes) == 2 and all(dtypes):
        return dtypes[0] == dtypes[1]
    text = described(walk, node).replace(" is not ", " == ").replace(" != ", " == ").replace(" is ", " == ")
    return Atom(text, left.varies or right.varies)


def described(walk: Walk, node: ast.expr) -> str:
    """The text of a test, its names told apart by what they stand for."""
    names = sorted({each.id for each in ast.walk(node) if isinstance(each, ast.Name)})
    found = [(name, walk.scope.find(name)) for name in names]
    numbers = ",".join(f"{name}:{value.number}" for name, value in found if value is not None)
    return f"{ast.unparse(node)} {numbers}"
