"""Settings of one run: the command line over pyproject.toml over the defaults.

Takes what was typed (only that) and looks for `[tool.precision-audit]` in the nearest pyproject.toml that has it, from
the current folder upwards; gives `Settings`. The table holds the same keys as the options, checked as strictly: an
unknown key is an error with its line and the nearest name. What neither says stays None, and the policy decides.
A file given with `--config` that is no pyproject.toml may hold the keys at its top level.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from precision_audit.cli import options
from precision_audit.records import InputError

_SECTION = "precision-audit"
_MISSPELT = re.compile(r"precision[-_ .]?audit", re.IGNORECASE)  # read as ours by people, not by TOML


@dataclass(frozen=True, slots=True)
class Settings:
    """One field per option; `origins` says who set it: `command line` or the file."""

    policy: str = "bf16-inference"
    device: str | None = None
    input: tuple[str, ...] = ()
    checkpoint: str | None = None
    calibration_data: str | None = None
    budget: tuple[str, ...] = ()
    metric: str | None = None
    output_format: str = "full"
    output: tuple[str, ...] = ()
    steps: int | None = None
    pictures: str | None = None
    show_graph: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    min_basis: str = "assumed"
    fail_on: str = "error"
    exit_zero: bool = False
    write_plan: str | None = None
    write_code: str | None = None
    check_plan: str | None = None
    apply_plan: str | None = None
    verbose: bool = False
    quiet: bool = False
    debug: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)


def settings(given: Mapping[str, Any], start: Path | None = None) -> Settings:
    """Merge `given` (by option key, from the command line) over the configuration file over the defaults."""
    file = None if given.get("isolated") else _find(given.get("config"), start or Path.cwd())
    configured = _read(file, explicit="config" in given) if file else {}
    names = {entry.name for entry in fields(Settings)} - {"origins"}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, where in ((configured, str(file)), (given, "command line")):
        for key, value in source.items():
            name = key.replace("-", "_")
            if name in names:
                values[name] = tuple(value) if isinstance(value, list) else value
                if options.BY_KEY[key].kind == "number":
                    values[name] = int(value)
                origins[name] = where
    for name in ("select", "ignore"):
        if name in values:
            values[name] = tuple(prefix for text in values[name] for prefix in text.split(","))
    return Settings(**values, origins=origins)


def _find(explicit: str | None, start: Path) -> Path | None:
    """The file of `--config`, else the nearest pyproject.toml with our table."""
    if explicit is not None:
        if not Path(explicit).is_file():
            raise InputError(f"--config {explicit}: no such file; expected a TOML file with [tool.{_SECTION}]")
        return Path(explicit)
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file() and _has_table(file):
            return file
    return None


def _refuse_misspelt(file: Path, text: str, tool: object) -> None:
    """`[tool.precision_audit]` would be passed over in silence."""
    wrong = next((key for key in tool if _MISSPELT.fullmatch(key)), None) if isinstance(tool, dict) else None
    if wrong is not None and wrong != _SECTION:
        line = next((i for i, each in enumerate(text.splitlines(), 1) if wrong in each and "tool" in each), 1)
        raise InputError(f"{file}:{line}: [tool.{wrong}] is not read; expected [tool.{_SECTION}], rename it")


def _has_table(file: Path) -> bool:
    """A pyproject.toml of somebody else may be broken without concerning us; ours, in whatever spelling, does."""
    try:
        text = file.read_text("utf-8-sig", errors="replace")
    except OSError:
        return False
    try:
        tool = tomllib.loads(text).get("tool")
        _refuse_misspelt(file, text, tool)
        return isinstance(tool, dict) and _SECTION in tool
    except tomllib.TOMLDecodeError:
        return re.search(rf"(?m)^\s*\[+\s*tool\s*\.\s*[\"']?{_SECTION}\b", text) is not None


def _read(file: Path, explicit: bool) -> dict[str, Any]:
    """The table's entries by option key, checked."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{file}: not readable as TOML ({error}); mend it, or use --isolated") from error
    tool = content.get("tool", {})
    table = tool.get(_SECTION) if isinstance(tool, dict) else None
    if table is None:
        _refuse_misspelt(file, text, tool)
    if table is None and explicit and file.name != "pyproject.toml":
        table = content
    if table is not None and not isinstance(table, dict):
        raise InputError(f"{file}: {_SECTION} is no table; expected [tool.{_SECTION}] with key = value below it")
    if table is None:
        raise InputError(f"{file}: no table [tool.{_SECTION}] in it; add one, or leave --config out")
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key.replace("_", "-") in found:
            raise InputError(f"{file}:{_line(text, key)}: {key}: given twice, with - and with _; keep one of them")
        found[key.replace("_", "-")] = _value(key, value, file, text)
    return found


def _value(key: str, value: Any, file: Path, text: str) -> Any:
    """One entry, with the type that its option has."""
    where = f"{file}:{_line(text, key)}: {key}"
    known = {option.key: option for option in options.OPTIONS if option.in_file}
    option = known.get(key.replace("_", "-"))
    if option is None:
        if key.replace("_", "-") in options.BY_KEY:
            raise InputError(f"{where}: belongs on the command line only; remove it from the file")
        near = difflib.get_close_matches(key.replace("_", "-"), known, 1)
        mend = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
        raise InputError(f"{where}: unknown key; {mend}")
    if option.kind == "flag":
        if not isinstance(value, bool):
            raise InputError(f"{where} = {value!r}: expected true or false")
        return value
    if option.kind == "list" and isinstance(value, str):
        value = [value]
    if option.kind == "list":
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise InputError(f"{where}: expected a string or a list of strings")
    elif option.kind == "number":
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{where} = {value!r}: expected a whole number")
    elif not isinstance(value, str):
        raise InputError(f"{where} = {value!r}: expected a string")
    if option.choices and value not in option.choices:
        near = difflib.get_close_matches(value, option.choices, 1)
        mend = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(option.choices)}"
        raise InputError(f"{where} = {value!r}: {mend}")
    options.check(option.key, value, where)
    return _from_folder(option, value, file)


def _from_folder(option: options.Option, value: Any, file: Path) -> Any:
    """Paths in the file are relative to its folder; a policy is a path when it looks like one."""
    if option.key == "policy" and ("/" in value or value.endswith((".yaml", ".yml"))):
        return str(file.parent / value)
    if option.path and isinstance(value, list):
        return [str(file.parent / entry) for entry in value]
    return str(file.parent / value) if option.path else value


def _line(text: str, key: str) -> int:
    """The line of `key =` behind our table's header."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _SECTION in line and line.lstrip().startswith("[")), 0)
    pattern = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
    return next((i + 1 for i in range(start, len(lines)) if pattern.match(lines[i])), start + 1)
