"""Which rules there are, told from the names of the files in this folder.

Takes nothing; gives codes, and the file of one when it is asked for. Most rule files need torch: nothing here imports
one unasked, so that a lint of scripts answers at once.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parent
_PACKAGE = __name__.rpartition(".")[0]


def codes() -> tuple[str, ...]:
    """The codes of all rules, sorted."""
    return tuple(_files())


def module(code: str) -> ModuleType:
    """The file of one rule."""
    return importlib.import_module(f"{_PACKAGE}.{_files()[code]}")


@cache
def offers(code: str, what: str) -> bool:
    """Whether the rule has a `check` of models, or a `lint` of scripts; told from its text."""
    return f"\ndef {what}(" in (_FOLDER / f"{_files()[code]}.py").read_text(encoding="utf-8")


def nearest_code(wrong: str) -> str:
    """The code that was probably meant: one of the same family, by its letters, then by its number."""
    asked = wrong.upper()

    def near(code: str) -> tuple[bool, float, int]:
        number = int(asked[2:]) if re.fullmatch("[0-9]{1,9}", asked[2:]) else 0
        alike = difflib.SequenceMatcher(None, asked, code).ratio()
        return (asked[:3] != code[:3], -alike, abs(int(code[2:]) - number))

    return min(codes(), key=near)


def code_of(module_name: str) -> str:
    """`PA501` of `precision_audit.rules.pa501_unused_rule`."""
    return module_name.rpartition(".")[2].partition("_")[0].upper()


@cache
def _files() -> Mapping[str, str]:
    """Names of the rule files by code, sorted."""
    names = sorted(entry.name for entry in pkgutil.iter_modules([str(_FOLDER)]) if entry.name.startswith("pa"))
    return {code_of(name): name for name in names}
