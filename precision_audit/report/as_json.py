"""The report as JSON, version 1: the names of `records`, every record whole but for what the audit has used up
(`Report.facts`, `Finding.bound`, `Suppression.since`).

Takes a `Report`, or a `Lint`, whose findings have the same fields; gives JSON that any parser accepts: a number that
JSON cannot hold is one of the strings "inf", "-inf", "nan". A record is an object; pairs whose first half is a name
(`versions`, `tolerances`, `symbols`, `attributes`, …) are one object with those names as keys; other tuples are arrays.
`read` gives the same report back, `schema` the JSON Schema. All three follow the type hints of the records, so that
they cannot disagree.

The version rises when a field is renamed or removed or its meaning changes; a reader must accept fields that it does
not know. Source files under the working directory are written relative to it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from typing import Any, Literal, get_args, get_origin

from precision_audit import records
from precision_audit.records import InputError, Lint, Report, Source, Suppression
from precision_audit.report import phrases

SUFFIXES = (".json",)
SCHEMA_VERSION = 1

_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: _NUMBER,
    type(None): {"type": "null"},
    object: {},
}


def render(report: Report | Lint, *, verbose: bool = False, color: bool = False) -> str:
    """The whole report, whatever `verbose`; keys in the order of the records, two spaces of indentation."""
    return json.dumps(_encoded(report, type(report)), indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def read(text: str) -> Report:
    """The report that `render` wrote."""
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"report: line {error.lineno}: {error.msg}; expected the JSON of --output-format json"
        ) from error
    found = tree.get("schema") if isinstance(tree, dict) else None
    if found != SCHEMA_VERSION:
        raise InputError(
            f"report: schema {found!r}; expected {SCHEMA_VERSION}, write the report again with this version"
        )
    decoded = _decoded(tree, Report)
    assert isinstance(decoded, Report)
    return decoded


def schema(record: type[Report] | type[Lint] = Report) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what `render` writes."""
    names = _reachable(record)
    definitions = {name: _object_schema(getattr(records, name)) for name in sorted(names - {record.__name__})}
    top = _object_schema(record)
    top["properties"]["schema"] = {"const": SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"precision-audit {record.__name__.lower()}",
        **top,
        "$defs": definitions,
    }


def _encoded(value: Any, hint: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _encoded(getattr(value, name), inner) for name, inner in _fields(type(value)).items()} | (
            {"file": phrases.path(value.file)} if isinstance(value, Source | Suppression) else {}
        )
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, tuple | list):
        inner = _pair(hint)
        if inner is not None:
            return {name: _encoded(each, inner) for name, each in value}
        element = _element(hint)
        return [_encoded(each, element) for each in value]
    return value


def _decoded(value: Any, hint: Any) -> Any:
    options = get_args(hint) if _is_union(hint) else (hint,)
    if isinstance(value, dict):
        pair = next((inner for option in options if (inner := _pair(option)) is not None), None)
        if pair is not None:
            return tuple((name, _decoded(each, pair)) for name, each in value.items())
        record = next(option for option in options if dataclasses.is_dataclass(option))
        return _record(value, record)
    if isinstance(value, list):
        element = next((_element(option) for option in options if get_origin(option) is tuple), object)
        return tuple(_decoded(each, element) for each in value)
    if isinstance(value, str) and value in ("inf", "-inf", "nan") and {float, object} & set(options):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool) and float in options and int not in options:
        return float(value)
    return value


def _record(value: dict[str, Any], record: Any) -> Any:
    given = {each.name for each in dataclasses.fields(record) if each.init}  # what is not, follows from the others
    found = {name: hint for name, hint in _fields(record).items() if name in value and name in given}
    return record(**{name: _decoded(value[name], hint) for name, hint in found.items()})


@functools.cache
def _fields(record: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(record)
    return {each.name: hints[each.name] for each in dataclasses.fields(record) if each.metadata.get("written", True)}


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (typing.Union, types.UnionType)


def _element(hint: Any) -> Any:
    """What a tuple[X, ...] holds."""
    arguments = get_args(hint)
    return arguments[0] if get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis else object


def _pair(hint: Any) -> Any:
    """T of a tuple[tuple[str, T], ...], which is written as an object; None for every other type."""
    inner = get_args(_element(hint))
    named = get_origin(_element(hint)) is tuple and len(inner) == 2 and inner[0] is str and inner[1] is not Ellipsis
    return inner[1] if named else None


def _reachable(record: Any) -> set[str]:
    found = {record.__name__}
    for hint in _fields(record).values():
        for inner in _records_in(hint):
            found |= {inner.__name__} | _reachable(inner)
    return found


def _records_in(hint: Any) -> list[Any]:
    if dataclasses.is_dataclass(hint):
        return [hint]
    return [record for argument in get_args(hint) if argument is not Ellipsis for record in _records_in(argument)]


def _object_schema(record: Any) -> dict[str, Any]:
    fields = _fields(record)
    required = [
        each.name
        for each in dataclasses.fields(record)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING and each.init
    ]
    return {
        "type": "object",
        "properties": {name: _hint_schema(hint) for name, hint in fields.items()},
        "required": required,
    }


def _hint_schema(hint: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{getattr(hint, '__name__', '')}"}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if _is_union(hint):
        return {"anyOf": [_hint_schema(argument) for argument in get_args(hint)]}
    if get_origin(hint) is tuple:
        pair = _pair(hint)
        if pair is not None:
            return {"type": "object", "additionalProperties": _hint_schema(pair)}
        return {"type": "array", "items": _hint_schema(_element(hint))}
    return dict(_PLAIN[hint])
