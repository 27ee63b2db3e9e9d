"""Collections of a script that are gone through one by one: lists, parameters, comprehensions, its own generators.

Takes a walk and a collection's value; gives its elements. A list that is written out has as many as it shows; of
anything else one stands for all, and differs from one to the next. The body of a generator of the file is walked where
it is looped over, before the loop's own lines; a comprehension over batches is a loop.
"""

from __future__ import annotations

import ast
from contextlib import nullcontext
from typing import TYPE_CHECKING

from precision_audit.script import calls
from precision_audit.script import expressions as ex
from precision_audit.script.values import Value

if TYPE_CHECKING:
    from precision_audit.script.walk import Walk


def each_of(value: Value) -> tuple[Value, ...] | None:
    """The elements of a list that is written out in the script, where there are a few."""
    told = any(item.kind not in ("constant", "unknown") for item in value.items)
    return value.items if value.kind == "sequence" and told and len(value.items) <= 8 else None


def element(value: Value, target: ast.expr) -> Value:
    """One element of a collection that is not written out."""
    if value.kind == "parameters":
        one = Value("parameter", node=target, of=value.of)
        return Value("sequence", items=(Value("constant"), one)) if value.name == "named" else one
    if value.kind == "grad":  # of a list of gradients
        return value
    return Value(node=target, varies=True, forwards=value.forwards)


def drawn(walk: Walk, value: Value, target: ast.expr) -> Value:
    """What a loop takes of a collection that is not written out; the body of a generator of the file runs now."""
    if value.kind == "generator":
        return calls.drawn(walk, value)
    inner = [calls.drawn(walk, each) for each in value.items if each.kind == "generator"]
    if value.kind != "unknown" or not inner:
        return element(value, target)
    return Value(varies=True, forwards=frozenset().union(*(each.forwards for each in inner)))


def comprehension(walk: Walk, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
    first = ex.evaluate(walk, node.generators[0].iter)
    outer = walk.scope
    walk.scope = type(outer)(outer=outer)
    items = each_of(first) if len(node.generators) == 1 else None
    made = []
    batches = items is None and first.kind not in ("parameters", "modules", "grad")
    with walk.visit(node) if batches else nullcontext():
        for item in items if items is not None else (drawn(walk, first, node.generators[0].target),):
            ex.bind_target(walk, node.generators[0].target, item)
            made.append(_each(walk, node))
    walk.scope = outer
    if items is not None:
        return Value("sequence", node=node, items=tuple(made))
    if made[0].kind == "parameter":
        return Value("parameters", node=node, of=made[0].of)
    return Value("grad" if made[0].kind == "grad" else "unknown", node=node, of=made[0].of, forwards=made[0].forwards)


def _each(walk: Walk, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
    """What a comprehension computes for one element."""
    for further in node.generators[1:]:
        ex.bind_target(walk, further.target, element(ex.evaluate(walk, further.iter), further.target))
    for test in (test for generator in node.generators for test in generator.ifs):
        ex.evaluate(walk, test)
    return ex.evaluate(walk, node.elt)


def yielded(walk: Walk, node: ast.Yield | ast.YieldFrom) -> Value:
    value = ex.evaluate(walk, node.value)
    if isinstance(node, ast.YieldFrom):
        value = drawn(walk, value, node.value)
    if walk.yielded:
        walk.yielded[-1].append(_varying(value))
    return Value(node=node)


def _varying(value: Value) -> Value:
    """A constant is the one of this yield only."""
    if value.kind == "sequence":
        return Value("sequence", node=value.node, items=tuple(map(_varying, value.items)), varies=True)
    return Value(varies=True) if value.kind == "constant" else value
