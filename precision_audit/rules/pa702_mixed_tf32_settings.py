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

from precision_audit.records import Finding
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Script

_MATMUL, _CUDNN = "torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32"
_CALL = "torch.set_float32_matmul_precision"


def lint(script: Script) -> Iterator[Finding]:
    old: list[tuple[ast.AST, str, object]] = []
    new: list[str] = []
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign):
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            names = [script.dotted(target) for target in node.targets]
            old += [(node, name, value) for name in names if name in (_MATMUL, _CUDNN)]
            new += [name for name in names if name.startswith("torch.backends.") and name.endswith(".fp32_precision")]
        elif isinstance(node, ast.Call) and script.dotted(node.func) == _CALL:
            first = node.args[0] if node.args else None
            old.append((node, _CALL, first.value if isinstance(first, ast.Constant) else None))
    for place, name, setting in old if new else ():
        old_name, new_name = name.removeprefix("torch."), new[0].removeprefix("torch.")
        what = f"{old_name} beside {new_name} → reading it raises where they disagree"
        yield found_at(__name__, script, place, "warning", what, _replacement(name, setting))


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
