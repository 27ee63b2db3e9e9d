"""Lines of the user's code that ask for a format, and would be answered otherwise in the low one.

Takes a capture; gives the lines of `if x.dtype == torch.float16:` and the like, in functions that led to an op, whose
answer for the low format is not that for the captured one. The captured graph holds the path of the captured format
alone, and nothing in it tells of the other. Reads source files as text, runs nothing of theirs. A test that cannot be
answered from formats alone (a size, a flag) counts only if its other parts leave it open.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from precision_audit.capture import Captured
from precision_audit.formats import dtype_of
from precision_audit.records import Source

_Answer = bool | None

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in')
_TORCH = str(Path(torch.__file__).parent) + os.sep


def branches(captured: Captured, high: str, low: str) -> tuple[Source, ...]:
    """Sorted by file and line."""
    lines: dict[str, set[int]] = {}
    for node in captured.nodes.values():
        for file, line in _FRAME.findall(node.meta.get("stack_trace") or ""):
            if not file.startswith((_TORCH, "<")):
                lines.setdefault(file, set()).add(int(line))
    for kind in sorted({op.module_type for op in captured.graph.ops if op.module_type}):
        for file, line in _forwards(kind):
            lines.setdefault(file, set()).add(line)
    found = []
    for file in sorted(lines):
        for name, first, last, tests in _functions(file):
            if any(first <= line <= last for line in lines[file]):
                found += [
                    Source(file, test.lineno, name, linecache.getline(file, test.lineno).strip())
                    for test in tests
                    if _differs(test, dtype_of(high), dtype_of(low))
                ]
    return tuple(found)


@cache
def _forwards(kind: str) -> tuple[tuple[str, int], ...]:
    """File and line of the forward of a module's class, `package.module.function.<locals>.Class`."""
    owner = kind
    while owner and owner not in sys.modules:
        owner = owner.rpartition(".")[0]
    file = getattr(sys.modules.get(owner), "__file__", None) or ""
    if not file or file.startswith(_TORCH):
        return ()
    classes = [each for each in ast.walk(_tree(file)) if isinstance(each, ast.ClassDef)]
    mine = [each for each in classes if each.name == kind.rpartition(".")[2]]
    return tuple(
        (file, each.lineno)
        for one in mine
        for each in one.body
        if isinstance(each, ast.FunctionDef) and each.name == "forward"
    )


@cache
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@cache
def _functions(file: str) -> tuple[tuple[str, int, int, tuple[ast.expr, ...]], ...]:
    """Name, first and last line of every function of a file, and the conditions in it that speak of a dtype."""
    tree = _tree(file)
    return tuple(
        (node.name, node.lineno, node.end_lineno or node.lineno, tuple(_tests(node)))
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


def _tests(function: ast.AST) -> Iterator[ast.expr]:
    for node in ast.iter_child_nodes(function):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue  # a function of its own
        if isinstance(node, (ast.If, ast.IfExp, ast.While)) and any(map(_is_dtype, ast.walk(node.test))):
            yield node.test
        yield from _tests(node)


def _differs(test: ast.expr, high: torch.dtype, low: torch.dtype) -> bool:
    one, other = _answer(test, high), _answer(test, low)
    return one is not other if None in (one, other) else one != other


def _answer(test: ast.expr, kind: torch.dtype) -> _Answer:
    """The test with every `….dtype` being `kind`; None where that does not decide it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _answer(test.operand, kind)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [_answer(value, kind) for value in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0], kind)
    return None


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr, kind: torch.dtype) -> _Answer:
    if not _is_dtype(left):
        left, right = right, left
        if not _is_dtype(left) or isinstance(operator, (ast.In, ast.NotIn)):
            return None
    several = isinstance(right, (ast.Tuple, ast.List, ast.Set))
    named = [_named(each) for each in (right.elts if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else [right])]
    if None in named:
        return None
    if isinstance(operator, (ast.Eq, ast.Is)) or (several and isinstance(operator, ast.In)):
        return kind in named
    if isinstance(operator, (ast.NotEq, ast.IsNot)) or (several and isinstance(operator, ast.NotIn)):
        return kind not in named
    return None


def _is_dtype(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "dtype"


def _named(node: ast.expr) -> torch.dtype | None:
    """`torch.float16`, `th.half` → the dtype."""
    found = getattr(torch, node.attr, None) if isinstance(node, ast.Attribute) else None
    return found if isinstance(found, torch.dtype) else None
