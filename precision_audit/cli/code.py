"""`--write-code`: the file that performs a plan's TransformerEngine swaps on the user's own model.

Refused before the model is loaded where the policy asks for no such swap, or where the file is none that Python could
import or that somebody else wrote; where the plan has none after all, nothing is written and that is said.
"""

from __future__ import annotations

import keyword
from pathlib import Path

from precision_audit.cli import terminal
from precision_audit.records import InputError, Plan, Policy

_BACKEND = "transformer_engine"
_MARK = "Written by precision-audit; needs torch and TransformerEngine"  # in every file that this option wrote


def check_name(path: str | None) -> None:
    """InputError for a name that no `import` can say, and for a file of another origin: no code by hand is replaced."""
    if not path:
        return
    file = Path(path)
    if file.suffix != ".py" or not file.stem.isidentifier() or keyword.iskeyword(file.stem):
        raise InputError(f"--write-code {path}: no name of a Python module; expected one such as te_modules.py")
    if file.is_file() and _MARK not in file.read_text(encoding="utf-8", errors="replace"):
        raise InputError(f"--write-code {path}: is there already and was not written by this option; give another name")


def check(path: str | None, policy: Policy) -> None:
    """InputError for a policy that swaps nothing by TransformerEngine."""
    if path and not any(rule.backend == _BACKEND for rule in policy.rules):
        raise InputError(
            f"--write-code {path}: policy {policy.name} swaps nothing by backend {_BACKEND}; "
            "give one that does, such as fp8-training-hopper-te"
        )


def write(plan: Plan, path: Path) -> None:
    """Write the file in one go."""
    from precision_audit.backends.transformer_engine.code import te_code
    from precision_audit.saving import atomic

    if not any(swap.backend == _BACKEND for swap in plan.swaps):
        terminal.say(f"{path} not written: the plan swaps nothing by TransformerEngine")
        return
    text = te_code(plan)

    def put(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    atomic.write_file(path, put)
    terminal.say(f"wrote {path}")
