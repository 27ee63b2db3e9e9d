"""Imports of a script, and which names it assigns more than once.

Takes a syntax tree; gives the full dotted name of everything imported, wherever in the file, and the names whose value
a reader cannot read off one line.
"""

from __future__ import annotations

import ast
from collections import Counter


def imports(tree: ast.AST) -> dict[str, str]:
    """`{"GS": "torch.cuda.amp.GradScaler", "F": "torch.nn.functional"}`; relative imports keep their last part."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            package = ("." * node.level) + (node.module or "")
            found.update({alias.asname or alias.name: f"{package}.{alias.name}" for alias in node.names})
    return {name: canonical(dotted) for name, dotted in found.items()}


def canonical(dotted: str) -> str:
    """One spelling for names that torch has under several."""
    for start, full in (("torch.optim.optimizer.", "torch.optim."), ("torch.nn.parallel.distributed.", "torch.nn.")):
        if dotted.startswith(start):
            return full + dotted.removeprefix(start)
    return dotted


def reassigned(tree: ast.AST) -> frozenset[str]:
    """Names and attributes that several lines of the file assign."""
    stores: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stores[node.id] += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            stores[node.attr] += 1
        elif isinstance(node, ast.arg):
            stores[node.arg] += 1
        if isinstance(node, ast.AugAssign):
            stores[node.target.id if isinstance(node.target, ast.Name) else getattr(node.target, "attr", "")] += 1
    return frozenset(name for name, count in stores.items() if count > 1)
