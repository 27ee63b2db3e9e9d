"""PA626 change made to a copy

What it does: reports a statement that computes a new tensor and drops it: `p.data.clamp(-1, 1)`, `x.half()` on a
tensor, `grad.mul(0.5)`, `p.half().mul_(0.9)`, and `p = p.half()` for the loop variable of a loop over parameters;
`.copy(` for `.copy_(`; and the deprecated `clip_grad_norm` without the underscore.
Why it is a hazard: nothing happens, and nothing says so: weights are not clipped, the tensor keeps its format. (Of a
module, `.half()` and `.to()` do work in place; of a tensor they never do.)
What to do: the method with an underscore (`clamp_`, `mul_`), or keep the result (`x = x.half()`, `p.data =
p.data.half()`).
References: torch.Tensor, in-place methods end in `_`; torch.nn.Module.to.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Script, known

_CASTS = ("half", "float", "bfloat16", "double", "to", "type")


def lint(script: Script) -> Iterator[Finding]:
    for event in script.events:
        if event.kind == "dropped":
            yield _dropped(script, event.node, event.text, event.function)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Expr):
            yield from _in_a_copy(script, node.value)
        if isinstance(node, ast.For) and _over_parameters(node):
            yield from _rebound(script, node)
    for call, name in script.calls():
        if name == "torch.nn.utils.clip_grad_norm":
            what = "clip_grad_norm is deprecated, and its name says that it changes nothing while it clips in place"
            yield found_at(__name__, script, call, "note", what, "torch.nn.utils.clip_grad_norm_(...)")


def _dropped(script: Script, node: ast.AST, method: str, function: str) -> Finding:
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    owner = ast.unparse(node.func.value)
    if method == "copy":
        what, fix = "a tensor has no copy() → AttributeError", f"{owner}.copy_(...)"
        return found_at(__name__, script, node, "error", what, fix, function=function)
    what = f"{method}() gives a new tensor, which is dropped → {owner} stays as it is"
    fix = f"{owner} = {ast.unparse(node)}" if method in _CASTS else f"{owner}.{method}_(...)"
    return found_at(__name__, script, node, "warning", what, fix, function=function)


def _in_a_copy(script: Script, node: ast.expr) -> Iterator[Finding]:
    """`p.half().mul_(0.9)` as a statement: what is changed is the copy that the cast makes."""
    value, changes = node, []
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in known.CHANGES:
        changes.append(value.func.attr)
        value = value.func.value
    if not changes or not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return
    method, owner = value.func.attr, value.func.value
    given = [*value.args, *(each.value for each in value.keywords)]
    casts = method in known.CASTS or any(script.dotted(each) in known.FORMATS for each in given)
    copies = method == "clone" or (casts and method in _CASTS)
    if not copies or not isinstance(owner, ast.Name | ast.Attribute | ast.Subscript):
        return
    name = ast.unparse(owner)
    copy = "makes" if method == "clone" else "makes of any other format"
    what = f"{changes[-1]}() changes the copy that {method}() {copy}, and drops it → {name} stays as it is"
    yield found_at(__name__, script, node, "warning", what, f"leave {method}() out: {name}.{changes[-1]}(...)")


def _over_parameters(node: ast.For) -> bool:
    calls = (each for each in ast.walk(node.iter) if isinstance(each, ast.Call))
    return any(isinstance(c.func, ast.Attribute) and c.func.attr in ("parameters", "named_parameters") for c in calls)


def _rebound(script: Script, loop: ast.For) -> Iterator[Finding]:
    """`p = p.half()` as one of the loop's own statements, with no reader of `p` after it."""
    targets = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
    for number, statement in enumerate(loop.body):
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target, value = statement.targets[0], statement.value
        if not isinstance(target, ast.Name) or target.id not in targets or not _own_method(value, target.id):
            continue
        later = (each for after in loop.body[number + 1 :] for each in ast.walk(after))
        if not any(isinstance(each, ast.Name) and each.id == target.id for each in later):
            what = f"gives the loop variable {target.id} another tensor → the model's parameter stays as it is"
            fix = f"{target.id}.data = {ast.unparse(value).replace(f'{target.id}.', f'{target.id}.data.', 1)}"
            yield found_at(__name__, script, statement, "warning", what, fix)


def _own_method(value: ast.expr, name: str) -> bool:
    """`p.half()` or `p.data.half()`."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    owner = value.func.value
    if isinstance(owner, ast.Attribute) and owner.attr == "data":
        owner = owner.value
    return value.func.attr in known.OUT_OF_PLACE and isinstance(owner, ast.Name) and owner.id == name


def bad() -> ScriptExample:
    return ScriptExample(_LOOP.format("        p.data.clamp(-0.01, 0.01)  # PA626\n"))


def good() -> ScriptExample:
    return ScriptExample(_LOOP.format("        p.data.clamp_(-0.01, 0.01)\n"))


_LOOP = """def clip_weights(model):
    for p in model.parameters():
{}"""
