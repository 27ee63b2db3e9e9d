"""PA702 TF32 set in two ways

What it does: reports `torch.backends.cuda.matmul.allow_tf32`, `torch.backends.cudnn.allow_tf32` and
`torch.set_float32_matmul_precision` in a file that also sets some `fp32_precision`.
Why it is a hazard: both write the same state and know only their own part of it. Where they disagree, the next read of
the old one (also by torch.compile, or by a library) raises "mix of the legacy and new APIs to set the TF32 status", and
where they agree the last one written decides without a word.
What to do: one of the two everywhere; today's is `torch.backends.cuda.matmul.fp32_precision = "tf32"` or `"ieee"`, and
`torch.backends.cudnn.conv.fp32_precision` for convolutions.
References: PyTorch's notes on CUDA semantics, "TensorFloat-32 (TF32) on Ampere (and later) devices".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from precision_audit.records import Finding
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Script

_Arms = tuple[tuple[ast.AST, str], ...]
_MATMUL, _CUDNN = "torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32"
_CALL = "torch.set_float32_matmul_precision"


@dataclass(frozen=True, slots=True)
class _Setting:
    node: ast.AST
    name: str
    value: object
    old: bool
    arms: _Arms


def lint(script: Script) -> Iterator[Finding]:
    made = list(_settings(script, script.tree, ()))
    for old in made:
        beside = next((new for new in made if not new.old and old.old and not _apart(old.arms, new.arms)), None)
        if beside is not None:
            old_name, new_name = old.name.removeprefix("torch."), beside.name.removeprefix("torch.")
            what = f"{old_name} beside {new_name} → reading it raises where they disagree"
            yield found_at(__name__, script, old.node, "warning", what, _replacement(old.name, old.value))


def _settings(script: Script, node: ast.AST, arms: _Arms) -> Iterator[_Setting]:
    """Every setting below a node, with the arms of the `if` and `try` statements it stands in."""
    if isinstance(node, ast.Assign):
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        for name in map(script.dotted, node.targets):
            if name in (_MATMUL, _CUDNN):
                yield _Setting(node, name, value, True, arms)
            elif name.startswith("torch.backends.") and name.endswith(".fp32_precision"):
                yield _Setting(node, name, value, False, arms)
    elif isinstance(node, ast.Call) and script.dotted(node.func) == _CALL:
        first = node.args[0] if node.args else None
        yield _Setting(node, _CALL, first.value if isinstance(first, ast.Constant) else None, True, arms)
    for field, children in ast.iter_fields(node):
        inner = arms
        if isinstance(node, ast.If | ast.Try) and field in ("body", "orelse", "handlers"):
            inner = (*arms, (node, field))
        for child in children if isinstance(children, list) else [children]:
            if isinstance(child, ast.AST):
                yield from _settings(script, child, inner)


def _apart(one: _Arms, other: _Arms) -> bool:
    """Whether the two stand in different arms of one statement, as where the version of torch decides."""
    fields = dict(other)
    return any(fields.get(node, field) != field for node, field in one)


def _replacement(name: str, value: object) -> str:
    where = "torch.backends.cudnn.conv" if name == _CUDNN else "torch.backends.cuda.matmul"
    word = "ieee" if value in (False, "highest") else "tf32"
    return f'{where}.fp32_precision = "{word}"'


def bad() -> ScriptExample:
    return ScriptExample(
        """import torch

torch.backends.cuda.matmul.fp32_precision = "ieee"
torch.backends.cudnn.allow_tf32 = True  # PA702
"""
    )


def good() -> ScriptExample:
    return ScriptExample(
        """import torch

torch.backends.cuda.matmul.fp32_precision = "ieee"
torch.backends.cudnn.conv.fp32_precision = "tf32"
"""
    )
