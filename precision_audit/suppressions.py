"""Suppressions: `# precision-audit: ignore[PA203] reason` in the user's code.

Takes a graph, the model it was captured from, and findings; gives the comments as `Suppression` records, and findings
marked by them. A comment speaks of its own line, or of the next one where it stands alone; on the closing line of a
statement or call over several lines, of all of them. It silences the report and
nothing else: the plan still applies the remedy. A pin or `hazards: {PA203: off}` in the policy leaves an op low.

Reads only files that hold the model: those of `Op.source` and those of the model's classes; and of these only the
classes and functions that the audit has seen, since what another model in the file needs cannot be judged here. Never
fails: a file that is gone or is no Python holds no comments.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import re
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from precision_audit.records import Finding, Graph, Suppression

_COMMENT = re.compile(r"#\s*precision[-_]audit:\s*(?P<said>ignore\b[^#]*)", re.IGNORECASE)
_SAID = re.compile(r"ignore\b(?:\[(?P<codes>[^\]]*)\])?(?P<reason>.*?)(?=\bignore\[|$)", re.IGNORECASE | re.DOTALL)
_WHOLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr, ast.Assert, ast.Raise, ast.Delete, ast.Call)
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_OTHERS = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def read(graph: Graph, model: Any = None) -> tuple[Suppression, ...]:
    """Every suppression in the code that `graph` was captured from, by file and line."""
    seen: dict[str, set[int]] = {}
    for op in graph.ops:
        if op.source is not None:
            seen.setdefault(os.path.abspath(op.source.file), set()).add(op.source.line)
    for file, line in _classes(model):
        seen.setdefault(file, set()).add(line)
    return tuple(each for file in sorted(seen) for each in _in_file(file, _text(file), seen[file]))


def in_text(file: str, text: str) -> tuple[Suppression, ...]:
    """Every suppression in a file, whatever was seen of it."""
    return tuple(_in_file(os.path.abspath(file), text, None))


def suppressed(findings: Iterable[Finding], suppressions: Iterable[Suppression]) -> tuple[Finding, ...]:
    """The findings, each with the first suppression that speaks of it."""
    by_file: dict[str, list[Suppression]] = {}
    for each in suppressions:
        by_file.setdefault(each.file, []).append(each)

    def of(finding: Finding) -> Suppression | None:
        if finding.source is None or not by_file:
            return None
        line, there = finding.source.line, by_file.get(os.path.abspath(finding.source.file), ())
        return next((each for each in there if each.speaks_of(line) and covers(each, finding.rule)), None)

    return tuple(replace(finding, suppression=of(finding)) for finding in findings)


def covers(suppression: Suppression, rule: str) -> bool:
    """Whether the comment names the rule, or the beginning of its code."""
    return any(rule.startswith(code) for code in suppression.codes)


def _classes(model: Any) -> Iterator[tuple[str, int]]:
    """File and first line of the classes of a model's modules that are in a file with suppressions."""
    from torch import nn  # here: a lint, which has no model, does without torch

    modules = model.modules() if isinstance(model, nn.Module) else ()
    files: dict[str, bool] = {}  # whether it holds a suppression
    for kind in dict.fromkeys(type(module) for module in modules):
        with contextlib.suppress(OSError, TypeError, SyntaxError, IndexError):
            file = os.path.abspath(inspect.getsourcefile(kind) or "")
            if file not in files:
                files[file] = not _is_library(file) and _COMMENT.search(_text(file)) is not None
            if files[file]:
                yield file, inspect.getsourcelines(kind)[1]


def _is_library(file: str) -> bool:
    """Torch's own file, or one of the standard library."""
    import torch

    its_own = str(Path(torch.__file__).parent) + os.sep
    return file.startswith(its_own) or (file.startswith(_STANDARD) and f"{os.sep}site-packages{os.sep}" not in file)


def _text(file: str) -> str:
    try:
        with tokenize.open(file) as opened:
            return opened.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return ""


def _in_file(file: str, text: str, seen: set[int] | None) -> Iterator[Suppression]:
    """The comments of one file, in those of its outermost classes and functions that hold a line of `seen`, and at
    its top level; None: all of them."""
    if not _COMMENT.search(text):
        return
    try:
        tree = ast.parse(text)
        spans = [] if seen is None else list(_spans(tree))
        unseen = [span for span in spans if not any(line in span for line in seen or ())]
        closed = _closed(tree)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError):
        return
    code = {token.start[0] for token in tokens if token.type not in _OTHERS}
    for token in tokens:
        line = token.start[0]
        if token.type != tokenize.COMMENT or any(line in span for span in unseen):
            continue
        target = line if line in code else min((each for each in code if each > line), default=line)
        since = closed.get(line, 0) if line in code else 0
        for found in (each for comment in _COMMENT.finditer(token.string) for each in _SAID.finditer(comment["said"])):
            codes = tuple(part.strip().upper() for part in (found["codes"] or "").split(",") if part.strip())
            yield Suppression(file, line, target, codes, found["reason"].strip(" \t:-;,"), token.line.strip(), since)


def _closed(tree: ast.Module) -> dict[int, int]:
    """By line on which a statement or call over several lines ends: the first line of the largest of them."""
    found: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, _WHOLE) and node.end_lineno is not None and node.end_lineno > node.lineno:
            found[node.end_lineno] = min(node.lineno, found.get(node.end_lineno, node.lineno))
    return found


def _spans(tree: ast.Module) -> Iterator[range]:
    """Line ranges of the outermost classes and functions, and of the classes within these functions: a function may
    hold two models, of which one was audited."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield _span(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (_span(inner) for inner in ast.walk(node) if isinstance(inner, ast.ClassDef))


def _span(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> range:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return range(first, (node.end_lineno or node.lineno) + 1)
