"""PA503 over-broad pattern

What it does: reports a module pattern of your policy that is anchored only at its start (`mlp.gate*`) and takes, beside
the module it spells (`mlp.gate`), a sibling whose name merely continues it: `mlp.gate_proj`, `layer.10` for `layer.1*`.
Why it is a hazard: the sibling is put into a format that nobody chose for it, and nothing in the policy shows it.
What to do: name the module exactly, with a second pattern `mlp.gate.*` for what lies below it; or list what is meant.
References: the description of `module` in the policy schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precision_audit.policy.match import glob
from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found_in_policy

if TYPE_CHECKING:
    from torch import nn

_OPEN_END = re.compile(r"[A-Za-z0-9_]\*+$")


def check(context: Context) -> Iterator[Finding]:
    asked = [(rule, text) for rule in context.policy.rules if not rule.shipped for text in rule.module]
    open_ended = [(rule, text) for rule, text in asked if _OPEN_END.search(text)]
    if open_ended:
        paths = _paths({op.module for op in context.computed()})
        for rule, pattern in open_ended:
            if found := _strays(pattern, paths):
                meant, strays = found
                yield found_in_policy(
                    __name__,
                    "warning" if meant else "note",
                    rule,
                    f"module pattern {pattern!r} of rule {rule.name!r} also takes {_listed(strays)}"
                    + (f" beside {_listed(meant)}" if meant else ""),
                    Evidence("PROVED", f"compared with all {len(paths)} modules that compute"),
                    remedy=f"write {pattern.rstrip('*')!r} and {pattern.rstrip('*') + '.*'!r}, or list what is meant",
                )


def _strays(pattern: str, paths: list[str]) -> tuple[list[str], list[str]] | None:
    """Modules that the pattern without its star spells, and siblings whose names continue them.

    Without the first, several continuations of a pattern that starts at the root are still reported, unless they
    only count on: fc* for fc1 and fc2 is what it says.
    """
    stem = pattern.rstrip("*")
    spelled, longer = glob(stem), glob(stem + "[A-Za-z0-9_]*")
    leaves = [path for path in paths if glob(pattern).match(path)]
    meant = [path for path in leaves if spelled.match(path)]
    strays = [path for path in leaves if longer.match(path) and "." not in _beyond(stem, path)]
    if meant:
        return (meant, strays) if strays else None
    named = [path for path in strays if not _beyond(stem, path).isdigit()]
    return ([], named) if len(named) > 1 and not pattern.startswith("*") else None


def _beyond(stem: str, path: str) -> str:
    """What of the path lies beyond the shortest part that the stem spells."""
    spelled = glob(stem)
    return next((path[i:] for i in range(len(path) + 1) if spelled.match(path[:i])), "")


def _paths(modules: set[str]) -> list[str]:
    """Modules that compute, and the ones they lie in."""
    every = {path[: match.start()] for path in modules for match in re.finditer(r"\.", path)} | modules
    return sorted(every - {""})


def _listed(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def bad() -> Example:
    return Example(*_model(), policy=_POLICY.replace("PATTERNS", '"mlp.gate*"'))


def good() -> Example:
    return Example(*_model(), policy=_POLICY.replace("PATTERNS", '[mlp.gate, "mlp.gate.*"]'))


_POLICY = """
name: mine
extends: bf16-inference
rules:
  - {name: router-high, module: PATTERNS, class: keep-fp32}  # PA503
"""


def _model() -> tuple[nn.Module, tuple[Any, ...]]:
    import torch
    from torch import nn

    mlp = nn.Sequential()
    mlp.add_module("gate", nn.Linear(8, 8))
    mlp.add_module("gate_proj", nn.Linear(8, 8))
    model = nn.Sequential()
    model.add_module("mlp", mlp)
    return model, (torch.randn(2, 8),)
