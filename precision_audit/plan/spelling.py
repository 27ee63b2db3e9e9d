"""YAML in flow style: one record per line, so that a diff of a plan shows what changed.

Takes plain values, tuples and mappings of them; gives text that YAML reads back as the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

_PLAIN = re.compile(r"[A-Za-z_/][\w./#-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})  # YAML 1.1 reads them as values


def listed(key: str, items: Iterable[str]) -> list[str]:
    lines = [f"  - {item}" for item in items]
    return [f"{key}:", *lines] if lines else []


def flow(fields: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{quoted(key)}: {scalar(value)}" for key, value in fields.items()) + "}"


def scalar(value: object) -> str:
    if isinstance(value, Mapping):
        return flow(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(scalar(each) for each in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and "e" in repr(value) and "." not in repr(value):
        return repr(value).replace("e", ".0e")  # YAML 1.1 takes 1e-05 for a word
    return quoted(value) if isinstance(value, str) else repr(value)


def quoted(value: str) -> str:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if plain else json.dumps(value, ensure_ascii=False)
