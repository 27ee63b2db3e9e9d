"""The manual of the hazard rules: one rule's pages, and the table of all of them.

Takes a code; gives text made from the rule's own file (docstring, `bad()`, `good()`, the severities it speaks with), so
that nothing here can fall behind the rules. Reads source, runs no rule.

`python -m precision_audit.rules README.md` writes the table between the markers of a Markdown file.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from precision_audit import rules
from precision_audit.records import InputError

FAMILIES: Mapping[str, str] = {
    "PA1": "range",
    "PA2": "accuracy",
    "PA3": "formats and kernels",
    "PA4": "fp8 and hardware",
    "PA5": "policy and coverage",
    "PA6": "training",
    "PA7": "modes of the process",
}
BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"

_BOTH = ("bad", "good")
_SEVERITIES = ("error", "warning", "note")


def page(asked: str) -> str:
    """Manual of one rule, with the examples that the tests execute."""
    code = _code(asked)
    module = rules.module(code)
    of_models = rules.offers(code, "check")
    told = f"`hazards: {{{code}: …}}` sets it" if of_models else "found by `precision-audit lint`"
    facts = f"family: {family(code)}; severity: {severity(code) or 'as the case is'}; {told}"
    texts = (inspect.getsource(getattr(module, name)) if of_models else getattr(module, name)().text for name in _BOTH)
    bad, good = (textwrap.indent(text.strip("\n"), "    ") for text in texts)
    shared = _shared(module, _BOTH) if of_models else ""
    parts = [
        f"{(module.__doc__ or '').strip()}\n\n({facts})",
        f"bad, what it finds:\n\n{bad}",
        f"good, what it leaves alone:\n\n{good}",
        *([f"used by these:\n\n{textwrap.indent(shared, '    ')}"] if shared else []),
    ]
    return "\n\n".join(parts)


def family(code: str) -> str:
    return FAMILIES.get(code[:3], "other")


@functools.cache
def severity(code: str) -> str:
    """The severities that the rule may speak with, worst first: those that its file names, or a file of this folder
    that it builds on and that is no rule. "" where there are none."""
    said: set[str] = set()
    files = [rules.module(code).__name__]
    for name in files:
        tree = ast.parse(inspect.getsource(importlib.import_module(name)))
        said |= {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module}
        shared = (each for each in sorted(imported) if each.startswith(f"{rules.__name__}."))
        files += [each for each in shared if each not in files and not each.rpartition(".")[2].startswith("pa")]
    return ", ".join(word for word in _SEVERITIES if word in said)


def rows() -> list[tuple[str, str, str, str]]:
    """Code, title, family and severities of every rule, by code."""
    return [(code, rules.title(code), family(code), severity(code)) for code in rules.codes()]


def markdown() -> str:
    """The table of all rules."""
    lines = ["| rule | what it finds | family | severity |", "|---|---|---|---|"]
    lines += [f"| {code} | {_escaped(title)} | {kind} | {words or '-'} |" for code, title, kind, words in rows()]
    return "\n".join(lines)


def written(text: str) -> str:
    """A Markdown text with the table between its markers as it is now."""
    if BEGIN not in text or END not in text:
        raise InputError(f"no rule table: expected the lines {BEGIN} and {END}; add them where the table belongs")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{markdown()}\n{END}{rest.partition(END)[2]}"


def write(path: Path) -> None:
    """Bring the rule table of a Markdown file up to date."""
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


def _code(asked: str) -> str:
    """The code of a rule that exists; InputError with the nearest one for any other."""
    code, titles = asked.strip().upper(), {rules.title(each).lower(): each for each in rules.codes()}
    if code in rules.codes():
        return code
    alike = difflib.get_close_matches(asked.strip().lower(), titles, 1, 0.5)
    near = titles[alike[0]] if alike else rules.nearest_code(code)
    raise InputError(f"no rule {asked!r}; did you mean {near}, {rules.title(near)}? See: precision-audit list rules")


def _shared(module: ModuleType, names: Iterable[str]) -> str:
    """The module's own functions and constants that `names` use, and those that these use, in the file's order."""
    source = inspect.getsource(module)
    defined: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            defined[node.targets[0].id] = node
    wanted: dict[str, None] = {}
    open_names = [*names]
    while open_names:
        used = [node.id for node in ast.walk(defined[open_names.pop()]) if isinstance(node, ast.Name)]
        new = [name for name in used if name in defined and name not in (*wanted, "bad", "good")]
        wanted |= dict.fromkeys(new)
        open_names += new
    kept = [statement for name, statement in defined.items() if name in wanted]
    return "\n\n".join(ast.get_source_segment(source, each) or "" for each in kept)


def _escaped(text: str) -> str:
    return re.sub(r"([|<*_])", r"\\\1", text)
