"""Policies: which format each kind of op may run in, read from YAML.

Takes the name of a shipped policy, the path of a file, or a `Policy`; gives a `Policy` that is total: every op falls
under some rule. Rules stay in the file's order, the first that matches wins; a file with `extends` puts its rules
before its parent's and lays its mappings over the parent's key by key. Loading never runs anything the file says.

Everything wrong with a file is one `InputError` with file, line and key, raised here and nowhere later: what comes
out of `load` is trusted. See `policy_schema` for the keys, `policy_checks` for contradictions, `policy_match` for what
a rule matches.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from precision_audit.policy import schema as policy_schema
from precision_audit.policy.checks import DEFAULT_BACKEND, check_catch_all, check_file, check_whole
from precision_audit.policy.nodes import Node, conform, nearest, read
from precision_audit.policy.schema import schema
from precision_audit.records import InputError, Policy, Predicate, Rule

__all__ = ["folder", "load", "parse", "schema", "shipped"]

_SUFFIXES = (".yaml", ".yml")
_REQUIRED = {"mode": "mode: inference or training", "formats": "formats: {high: fp32, low: bf16}"}


def load(name_or_path: str | Path | Policy) -> Policy:
    """The policy of that name, at that path, or as given."""
    if isinstance(name_or_path, Policy):
        return name_or_path
    if not isinstance(name_or_path, str | Path):
        raise InputError(f"policy is {name_or_path!r}; expected a name of `list policies`, or a path")
    path = _find(os.fspath(name_or_path), None)
    return _load_shipped(path) if path.parent == folder() else _read(path, os.fspath(name_or_path))


def parse(text: str, file: str = "<policy>") -> Policy:
    """A policy from text; `file` is what errors call it, and where `extends` looks for relative paths."""
    return _build(_root(text, file), Path(file))


def shipped() -> tuple[str, ...]:
    """Names of the policies that come with the package, sorted."""
    return tuple(sorted(path.stem for path in folder().glob("*.yaml")))


@cache
def folder() -> Path:
    """Where the shipped policies are: inside the package when installed from a wheel, beside it in a checkout."""
    inside = Path(__file__).parent.parent / "shipped_policies"
    return inside if inside.is_dir() else Path(__file__).parent.parent.parent / "policies"


def _find(name: str, beside: Path | None) -> Path:
    """A file, or a shipped policy's; relative paths of `extends` start at the file that says so."""
    if name in shipped():
        return folder() / f"{name}.yaml"
    near = (beside.parent / name) if beside is not None else Path(name)
    with contextlib.suppress(OSError):  # a name that no file can have is none
        if near.is_file():
            return near
    if name.endswith(_SUFFIXES) or os.sep in name:
        raise InputError(f"policy {name}: no such file; expected a path or one of {', '.join(shipped())}")
    raise InputError(
        f"unknown policy {name!r}{nearest(name, shipped())}; expected a path or one of {', '.join(shipped())}"
    )


@cache
def _load_shipped(path: Path) -> Policy:
    return _read(path, path.name)


def _read(path: Path, file: str) -> Policy:
    return _build(_root(_text(path, file), file), path)


def _text(path: Path, file: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"policy {file}: cannot be read ({error}); expected a YAML file in UTF-8") from error


def _root(text: str, file: str) -> Node:
    root = read(text, file)
    conform(root, policy_schema.fragment())
    check_file(root)
    return root


def _build(root: Node, path: Path) -> Policy:
    entries = root.entries()
    own = _rules(root, shipped=path.resolve().parent == folder().resolve())
    check_catch_all(root, own, entries["extends"].text() if "extends" in entries else "")
    parent = _parent(entries["extends"], path) if "extends" in entries else None
    fields: dict[str, Any] = _inherited(parent) if parent else {}
    for key in ("name", "description", "mode", "device", "swap", "casts", "autocast"):
        if key in entries:
            fields[key] = entries[key].text()
    if "keep_io_types" in entries:
        fields["keep_io_types"] = entries["keep_io_types"].flag()
    for key, node in entries["formats"].entries().items() if "formats" in entries else ():
        fields[key] = node.text()
    for key in ("hazards", "tolerances", "environment"):
        given = {k: _mapped(key, node) for k, node in entries[key].entries().items()} if key in entries else {}
        fields[key] = tuple(sorted({**dict(fields.get(key, ())), **given}.items()))
    lines = {code: f"{node.file}:{node.line}" for code, node in _entries(entries.get("hazards")).items()}
    fields["hazard_origins"] = tuple(sorted({**dict(fields.get("hazard_origins", ())), **lines}.items()))
    for key, example in _REQUIRED.items():
        if not all(name in fields for name in (("high", "low") if key == "formats" else (key,))):
            root.entries().get(key, root).fail(f"{key} is missing", example)
    fields["rules"] = own + (parent.rules if parent else ())
    policy = Policy(file=root.file, digest=_digest(fields), **fields)
    check_whole(policy, root)
    return policy


def _parent(node: Node, child: Path) -> Policy:
    """The policy that `extends` names, which extends none itself."""
    path, root = _extended(node, child)
    chain, last = [child, path], root
    while "extends" in last.entries():
        further, last = _extended(last.entries()["extends"], chain[-1])
        chain.append(further)
        if further.resolve() in [seen.resolve() for seen in chain[:-1]]:
            break
    if path.resolve() == child.resolve():
        node.fail("a policy cannot extend itself", "another policy")
    if chain[-1].resolve() in [seen.resolve() for seen in chain[:-1]]:
        node.fail(
            f"extends goes in a circle: {' -> '.join(seen.name for seen in chain)}", "a policy that extends nothing"
        )
    if len(chain) > 2:
        above = chain[2].stem
        node.fail(
            f"{node.text()} itself extends {above}", f"one level: extend {above}, with the rules of {node.text()} here"
        )
    return _build(root, path)


def _extended(node: Node, child: Path) -> tuple[Path, Node]:
    try:
        path = _find(node.text(), child)
    except InputError as error:
        node.fail(str(error))
    file = path.name if path.parent == folder() else os.fspath(path)
    return path, _root(_text(path, file), file)


def _inherited(parent: Policy) -> dict[str, Any]:
    names = ("mode", "high", "low", "device", "keep_io_types", "swap", "casts", "autocast")
    mappings = ("hazards", "hazard_origins", "tolerances", "environment")
    return {name: getattr(parent, name) for name in (*names, *mappings) if getattr(parent, name) != ""}


def _entries(node: Node | None) -> Mapping[str, Node]:
    return node.entries() if node is not None else {}


def _mapped(key: str, node: Node) -> str | float:
    return float(node.number()) if key == "tolerances" else node.text()


def _rules(root: Node, shipped: bool) -> tuple[Rule, ...]:
    nodes = root.entries()["rules"].items() if "rules" in root.entries() else []
    return tuple(_rule(node, shipped) for node in nodes)


def _rule(node: Node, shipped: bool) -> Rule:
    entries = node.entries()
    given = {key: entries[key].texts() for key in ("op", "kind", "module", "module_type") if key in entries}
    eligible = entries["class"].text() == "fp8-eligible"
    return Rule(
        name=entries["name"].text(),
        origin=f"{node.file}:{node.line}",
        classification=entries["class"].text(),
        where=tuple(_predicate(key, child) for key, child in entries["where"].entries().items())
        if "where" in entries
        else (),
        backend=entries["backend"].text() if "backend" in entries else DEFAULT_BACKEND if eligible else "",
        recipe=entries["recipe"].text() if "recipe" in entries else "",
        promote="promote" in entries and entries["promote"].flag(),
        fuse=entries["fuse"].text() if "fuse" in entries else "mlp",
        recipe_options=_options(entries.get("recipe_options")),
        shipped=shipped,
        **given,
    )


def _options(node: Node | None) -> tuple[tuple[str, object], ...]:
    return tuple(sorted((key, child.plain()) for key, child in _entries(node).items()))


def _predicate(key: str, node: Node) -> Predicate:
    given: Mapping[str, Node] = node.entries()
    numbers = {word: given[word].number() for word in ("multiple_of", "min", "max") if word in given}
    return Predicate(
        key=key,
        multiple_of=cast("int | None", numbers.get("multiple_of")),
        minimum=numbers.get("min"),
        maximum=numbers.get("max"),
        equals=given["equals"].plain() if "equals" in given else None,
    )


def _digest(fields: Mapping[str, Any]) -> str:
    """Of what the policy says, whichever file and line say it: 16 hexadecimal digits of SHA-256."""
    rules = tuple(
        (r.name, r.classification, r.op, r.kind, r.module, r.module_type, r.where, r.backend, r.recipe, r.promote)
        + ((r.fuse, r.recipe_options) if (r.fuse, r.recipe_options) != ("mlp", ()) else ())
        for r in fields["rules"]
    )
    said = sorted(
        (key, value) for key, value in fields.items() if key not in ("rules", "description", "hazard_origins")
    )
    return hashlib.sha256(repr((said, rules)).encode()).hexdigest()[:16]
