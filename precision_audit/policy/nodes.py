"""YAML with line numbers: a policy file read into a tree whose every value knows the line it stands on.

Takes the text of a file; gives `Node`s. Nothing is constructed by YAML itself: tags, anchors that recurse and Python
objects never get a chance, and `off` stays the word the user wrote instead of becoming false. Raises `InputError`
with file and line for text that is no YAML, for an empty file and for a key written twice.

`conform` checks a tree against a JSON Schema fragment (the small part of it that `policy_schema` uses), so that one
description serves the editor's completion and the error message.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from precision_audit.records import InputError

_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_PLAIN_TAGS = tuple(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge")
)
_DEPTH = 8  # a policy nests five deep; deeper is a recursive anchor or not a policy


@dataclass(frozen=True, slots=True)
class Node:
    """One YAML value. `value` is a dict of nodes, a list of nodes, or the text of a scalar as written."""

    value: dict[str, Node] | list[Node] | str
    line: int
    file: str
    path: str  # `rules[2].class`
    quoted: bool = False

    def fail(self, problem: str, expected: str = "") -> NoReturn:
        """Raise the one line that the user reads."""
        at = f"{self.path}: " if self.path else ""
        raise InputError(f"{self.file}:{self.line}: {at}{problem}" + (f"; expected {expected}" if expected else ""))

    def entries(self) -> dict[str, Node]:
        assert isinstance(self.value, dict)
        return self.value

    def items(self) -> list[Node]:
        """The nodes of a list; a single value counts as a list of one."""
        return self.value if isinstance(self.value, list) else [self]

    def text(self) -> str:
        assert isinstance(self.value, str)
        return self.value

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def number(self) -> float | int:
        """The number a scalar spells. `1e-7` counts, which YAML 1.1 itself would take for a word."""
        return _number(self.text())

    def flag(self) -> bool:
        return self.text().lower() in _TRUE

    def plain(self) -> object:
        """The value in Python's own types: numbers and booleans where unquoted text spells them."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return tuple(child.plain() for child in self.value)
        if self.quoted:
            return self.value
        if self.value.lower() in ("true", "false"):
            return self.value.lower() == "true"
        return _number(self.value) if _is_number(self.value) else self.value


def read(text: str, file: str) -> Node:
    """The tree of one YAML document."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError as error:
        raise InputError(
            f"{file}:1: nested too deeply; expected a policy with name, mode, formats and rules"
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(f"{file}:{line}: not valid YAML: {problem}; check indentation, quotes and brackets") from error
    if root is None:
        raise InputError(f"{file}:1: the file is empty; expected a policy with name, mode, formats and rules")
    node = _node(root, file, "", 0)
    if not isinstance(node.value, dict):
        node.fail("not a policy", "a mapping with name, mode, formats and rules")
    return node


def conform(node: Node, fragment: Mapping[str, Any]) -> None:
    """Raise unless `node` has the shape that the JSON Schema fragment describes."""
    if "anyOf" in fragment:
        shapes = {_shape(option): option for option in fragment["anyOf"]}
        shape = type(node.value)
        if shape not in shapes:
            node.fail(f"{_name_of(node)} cannot stand here", _expected(fragment))
        conform(node, shapes[shape])
    elif _shape(fragment) is not type(node.value):
        node.fail(f"{_name_of(node)} cannot stand here", _expected(fragment))
    elif isinstance(node.value, dict):
        _conform_mapping(node, fragment)
    elif isinstance(node.value, list):
        if len(node.value) < fragment.get("minItems", 0):
            node.fail("the list is empty", _expected(fragment))
        for item in node.value:
            conform(item, fragment["items"])
    else:
        _conform_scalar(node, fragment)


def nearest(word: str, names: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing when no name comes near."""
    found = difflib.get_close_matches(word, sorted(set(names)), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def _conform_mapping(node: Node, fragment: Mapping[str, Any]) -> None:
    known: Mapping[str, Any] = fragment.get("properties", {})
    names: Mapping[str, Any] = fragment.get("propertyNames", {})
    rest = fragment.get("additionalProperties", False)
    for key, child in node.entries().items():
        if key in known:
            conform(child, known[key])
        elif rest is False:
            child.fail(f"unknown key {key!r}{nearest(key, known)}", "one of " + ", ".join(known))
        elif "pattern" in names and not re.fullmatch(names["pattern"], key):
            known_names = names["examples"]
            child.fail(f"unknown key {key!r}{nearest(key, known_names)}", "one of " + ", ".join(known_names))
        else:
            conform(child, rest)
    for key in fragment.get("required", ()):
        if key not in node.entries():
            node.fail(f"{key} is missing", known[key].get("description", key))
    if len(node.entries()) < fragment.get("minProperties", 0):
        node.fail("nothing given", _expected(fragment))


def _conform_scalar(node: Node, fragment: Mapping[str, Any]) -> None:
    text = node.text()
    kind = fragment.get("type")
    if kind == "boolean" and text.lower() not in _TRUE + _FALSE:
        node.fail(f"{text!r} is no truth value", "true or false")
    if kind in ("number", "integer") and not _is_number(text, whole=kind == "integer"):
        node.fail(f"{text!r} is no {'whole ' * (kind == 'integer')}number", _expected(fragment))
    if kind in ("number", "integer") and _number(text) < fragment.get("minimum", float("-inf")):
        node.fail(f"{text} is too small", _expected(fragment))
    choices = [str(choice) for choice in fragment.get("enum", ()) if isinstance(choice, str)]
    if choices and text not in choices:
        node.fail(f"unknown value {text!r}{nearest(text, choices)}", "one of " + ", ".join(choices))
    if "pattern" in fragment and not re.search(fragment["pattern"], text):
        node.fail(f"{text!r} does not fit", _expected(fragment))
    if kind == "string" and not text.strip():
        node.fail("empty text", _expected(fragment))


def _node(node: yaml.Node, file: str, path: str, depth: int) -> Node:
    line = node.start_mark.line + 1
    here = Node("", line, file, path)
    if depth > _DEPTH:
        here.fail("nested too deeply, or an anchor that contains itself", "plain values")
    if node.tag not in _PLAIN_TAGS:
        here.fail(f"the tag {node.tag!r} is not allowed", "plain values")
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, file, path, depth)
    if isinstance(node, yaml.SequenceNode):
        return Node(
            [_node(item, file, f"{path}[{i}]", depth + 1) for i, item in enumerate(node.value)], line, file, path
        )
    quoted = getattr(node, "style", None) in ("'", '"')
    return Node("" if node.tag.endswith(":null") and not quoted else str(node.value), line, file, path, quoted)


def _mapping(node: yaml.MappingNode, file: str, path: str, depth: int) -> Node:
    entries: dict[str, Node] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            Node("", line, file, path).fail("a key must be a word", "name: value")
        key = str(key_node.value)
        child = f"{path}.{key}" if path else key
        if key in entries:
            Node("", line, file, child).fail(f"written twice, first on line {entries[key].line}", "each key once")
        entries[key] = _node(value_node, file, child, depth + 1)
    return Node(entries, node.start_mark.line + 1, file, path)


def _shape(fragment: Mapping[str, Any]) -> type:
    return {"object": dict, "array": list}.get(str(fragment.get("type")), str)


def _name_of(node: Node) -> str:
    if isinstance(node.value, str):
        return repr(node.value) if node.value else "nothing"
    return "a mapping" if isinstance(node.value, dict) else "a list"


def _expected(fragment: Mapping[str, Any]) -> str:
    return str(fragment.get("description") or fragment.get("pattern") or fragment.get("type", "another value"))


def _is_number(text: str, whole: bool = False) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and (not whole or bool(re.fullmatch(r"[+-]?\d+", text)))


def _number(text: str) -> float | int:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
