"""The plan as a file that people review, commit and check.

`write` gives YAML in graph order, one op, cast, fold or swap per line, so that a diff shows what changed; `read` gives
back the same `Plan`, or one line that names file, line and key. `check` (of `check.py`) says what no longer fits a
model; `apply` reads, checks and hands the plan over. Nothing in the file depends on a clock or a path.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from precision_audit.formats import FORMATS
from precision_audit.plan.check import cheaper, check
from precision_audit.plan.spelling import flow, listed, quoted
from precision_audit.records import (
    Cast,
    Fold,
    Graph,
    Hardware,
    InputError,
    Plan,
    Policy,
    Predicted,
    Refusal,
    Swap,
)

__all__ = ["apply", "cheaper", "check", "read", "write"]

VERSION = 1
_SWAP_MAPPINGS = ("parameters", "options", "recipe_options")  # of a swap, written where there are some

_HEAD = """\
# Formats and casts of one model, by op. Review, commit, and check with: precision-audit MODEL --check-plan FILE
"""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KEYS = (
    *("version", "policy", "mode", "formats", "graph", "predicted", "environment", "autocast_device", "autocast"),
    *("ops", "casts", "folds", "swaps", "refusals"),
)


def write(plan: Plan, path: str | Path) -> None:
    """Write `plan` to `path`."""
    Path(path).write_text(text(plan), encoding="utf-8")


def text(plan: Plan) -> str:
    """The file's text."""
    lines = [
        f"version: {VERSION}",
        f"policy: {quoted(plan.policy)}",
        f"mode: {plan.mode}",
        f"formats: {flow({'high': plan.high, 'low': plan.low})}",
        f"graph: {quoted(plan.graph_digest)}",
    ]
    if plan.predicted is not None:
        fields = ("seconds", "seconds_high", "cast_seconds", "cast_bytes", "error_share")
        lines.append("predicted: " + flow({name: getattr(plan.predicted, name) for name in fields}))
    if plan.environment:
        lines.append("environment: " + flow(dict(plan.environment)))
    if plan.autocast_device:
        lines.append(f"autocast_device: {plan.autocast_device}")
    lines += listed("autocast", (quoted(key) for key in plan.autocast))
    lines += ["ops:", *(f"  {quoted(key)}: {name}" for key, name in plan.formats)] if plan.formats else ["ops: {}"]
    lines += listed("casts", (flow(_cast(each)) for each in plan.casts))
    lines += listed("folds", (flow(_fold(each)) for each in plan.folds))
    lines += listed("swaps", (flow(_swap(each)) for each in plan.swaps))
    lines += listed("refusals", (flow(_refusal(each)) for each in plan.refusals))
    return _HEAD + "\n".join(lines) + "\n"


def read(path: str | Path) -> Plan:
    """The plan in a file."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"{path}: the plan cannot be read: {reason}; expected a file made by --write-plan") from error
    return parse(content, str(path))


def parse(content: str, file: str = "<plan>") -> Plan:
    """The plan in a text; `file` is what errors call it."""
    try:
        root = yaml.compose(content, Loader=_LOADER)
    except RecursionError as error:
        raise InputError(f"{file}:1: nested too deeply for a plan; write the plan again with --write-plan") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or "unreadable"
        raise InputError(f"{file}:{line}: not valid YAML: {problem}; write the plan again with --write-plan") from error
    reader = _Reader(file)
    top = reader.mapping(root, "plan", _KEYS, required=("version", "policy", "mode", "formats", "ops"))
    if reader.number(top["version"], "version", int) != VERSION:
        reader.fail(top["version"], f"version {top['version'].value} is not known", f"expected version {VERSION}")
    return reader.plan(top)


def apply(path: str | Path, graph: Graph, policy: Policy, hardware: Hardware | None = None) -> Plan:
    """The committed plan, used as written, once it is sure that it fits."""
    plan = read(path)
    problems = check(plan, graph, policy, hardware)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(f"{path}: {problems[0]}{more}; write the plan again with --write-plan")
    return plan


# writing -------------------------------------------------------------------------------------------------------------


def _cast(cast: Cast) -> dict[str, object]:
    return {"value": cast.value, "to": cast.to, "bytes": cast.bytes, "for": cast.consumers}


def _fold(fold: Fold) -> dict[str, object]:
    return {"value": fold.value, "to": fold.to, "copy": fold.copy, "bytes": fold.bytes, "for": fold.consumers}


def _swap(swap: Swap) -> dict[str, object]:
    names = ("op", "module", "backend", "recipe", "k", "n", "m", "constraints", "kind", "covers")
    given = {name: dict(getattr(swap, name)) for name in _SWAP_MAPPINGS if getattr(swap, name)}
    return {**{name: getattr(swap, name) for name in names}, **given}


def _refusal(refusal: Refusal) -> dict[str, object]:
    fields: dict[str, object] = {name: getattr(refusal, name) for name in ("op", "module", "backend", "reason")}
    return {**fields, **({"not_worth": True} if refusal.not_worth else {})}


# reading -------------------------------------------------------------------------------------------------------------


class _Reader:
    """Turns YAML nodes into records; every complaint names the line."""

    def __init__(self, file: str) -> None:
        self._file = file

    def plan(self, top: Mapping[str, yaml.Node]) -> Plan:
        formats = self.mapping(top["formats"], "formats", ("high", "low"), required=("high", "low"))
        mode = self.one_of(top["mode"], "mode", ("training", "inference"))
        return Plan(
            policy=self.text(top["policy"], "policy"),
            mode=mode,
            high=self.format(formats["high"]),
            low=self.format(formats["low"]),
            formats=tuple((key, self.format(node)) for key, node in self.mapping(top["ops"], "ops").items()),
            casts=self.each(top, "casts", self._cast),
            folds=self.each(top, "folds", self._fold),
            swaps=self.each(top, "swaps", self._swap),
            refusals=self.each(top, "refusals", self._refusal),
            autocast=self.each(top, "autocast", lambda node: self.text(node, "autocast")),
            autocast_device=self.text(top["autocast_device"], "autocast_device") if "autocast_device" in top else "",
            environment=self._environment(top),
            predicted=self._predicted(top["predicted"]) if "predicted" in top else None,
            graph_digest=self.text(top["graph"], "graph") if "graph" in top else "",
        )

    def _environment(self, top: Mapping[str, yaml.Node]) -> tuple[tuple[str, str], ...]:
        fields = self.mapping(top["environment"], "environment") if "environment" in top else {}
        return tuple((key, self.text(node, key)) for key, node in fields.items())

    def _predicted(self, node: yaml.Node) -> Predicted:
        names = ("seconds", "seconds_high", "cast_seconds", "cast_bytes", "error_share")
        fields = self.mapping(node, "predicted", names, required=names)
        numbers = {name: self.number(fields[name], name, int if name == "cast_bytes" else float) for name in names}
        return Predicted(**numbers)

    def _cast(self, node: yaml.Node) -> Cast:
        fields = self.mapping(node, "cast", ("value", "to", "bytes", "for"), required=("value", "to", "for"))
        size = self.number(fields["bytes"], "bytes", int) if "bytes" in fields else 0
        return Cast(self.text(fields["value"], "value"), self.format(fields["to"]), self._readers(fields), size)

    def _fold(self, node: yaml.Node) -> Fold:
        fields = self.mapping(node, "fold", ("value", "to", "copy", "bytes", "for"), required=("value", "to"))
        return Fold(
            self.text(fields["value"], "value"),
            self.format(fields["to"]),
            self._readers(fields),
            "copy" in fields and self.one_of(fields["copy"], "copy", ("true", "false")) == "true",
            self.number(fields["bytes"], "bytes", int) if "bytes" in fields else 0,
        )

    def _swap(self, node: yaml.Node) -> Swap:
        names = ("op", "module", "backend", "recipe", "k", "n", "m", "constraints", "kind", "covers")
        fields = self.mapping(node, "swap", (*names, *_SWAP_MAPPINGS), required=names[:4])
        given: dict[str, Any] = {name: self._values(fields, name) for name in _SWAP_MAPPINGS}
        k, n, m = (self._size(fields[name]) if name in fields else 0 for name in "knm")
        words = [self.text(fields[name], name) for name in names[:4]]
        found = self.each(fields, "constraints", lambda item: self.text(item, "constraints"))
        kind = self.text(fields["kind"], "kind") if "kind" in fields else "Float8Linear"
        covers = self.each(fields, "covers", lambda item: self.text(item, "covers"))
        swap = Swap(words[0], words[1], words[2], words[3], k, n, m, found, kind=kind, covers=covers)
        return replace(swap, **given)

    def _values(self, fields: Mapping[str, yaml.Node], name: str) -> tuple[tuple[str, Any], ...]:
        """Plain values by name."""
        entries = self.mapping(fields[name], name) if name in fields else {}
        return tuple((key, _LOADER("").construct_object(node)) for key, node in entries.items())

    def _refusal(self, node: yaml.Node) -> Refusal:
        names = ("op", "module", "backend", "reason")
        fields = self.mapping(node, "refusal", (*names, "not_worth"), required=names)
        words = [self.text(fields[name], name) for name in names]
        worthless = "not_worth" in fields and self.one_of(fields["not_worth"], "not_worth", ("true", "false")) == "true"
        return Refusal(words[0], words[1], words[2], words[3], worthless)

    def _readers(self, fields: Mapping[str, yaml.Node]) -> tuple[str, ...]:
        return self.each(fields, "for", lambda node: self.text(node, "for"))

    def _size(self, node: yaml.Node) -> int | str:
        value = self.text(node, "size")
        return int(value) if value.isdecimal() else value

    # nodes -----------------------------------------------------------------------------------------------------------

    def mapping(
        self, node: yaml.Node | None, name: str, keys: Iterable[str] = (), required: Iterable[str] = ()
    ) -> dict[str, yaml.Node]:
        """A mapping by key; `keys` are the ones it may have, all if there are none."""
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, f"{name} is no mapping", "expected lines of `key: value`")
        known = tuple(keys)
        found: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = self.text(key_node, f"a key of {name}")
            if known and key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                meant = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
                self.fail(key_node, f"{name} has no key {key!r}", meant)
            if key in found:
                self.fail(key_node, f"{key!r} stands twice in {name}", "expected each key once")
            found[key] = value
        for key in required:
            if key not in found:
                self.fail(node, f"{name} lacks the key {key!r}", f"expected `{key}: ...`")
        return found

    def each(self, fields: Mapping[str, yaml.Node], key: str, make: Callable[[yaml.Node], Any]) -> tuple[Any, ...]:
        node = fields.get(key)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            self.fail(node, f"{key} is no list", "expected a list")
        return tuple(make(item) for item in node.value)

    def text(self, node: yaml.Node, name: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self.fail(node, f"{name} is no text", "expected a word")
        return str(node.value)

    def number(self, node: yaml.Node, name: str, kind: type[Any]) -> Any:
        value = self.text(node, name)
        try:
            found = kind(value)
        except ValueError:
            self.fail(node, f"{name} {value!r} is no number", "expected a number")
        if not found >= 0:
            self.fail(node, f"{name} is {value}", "expected a number that is not negative")
        return found

    def one_of(self, node: yaml.Node, name: str, words: tuple[str, ...]) -> Any:
        value = self.text(node, name)
        if value not in words:
            self.fail(node, f"{name} {value!r} is not known", f"expected {' or '.join(words)}")
        return value

    def format(self, node: yaml.Node) -> str:
        value = self.text(node, "format")
        if value not in FORMATS:
            near = difflib.get_close_matches(value, FORMATS, n=1)
            mend = f"did you mean {near[0]}?" if near else "expected one of precision-audit list formats"
            self.fail(node, f"format {value!r} is not known", mend)
        return value

    def fail(self, node: yaml.Node | None, problem: str, mend: str) -> NoReturn:
        line = node.start_mark.line + 1 if node is not None else 1
        raise InputError(f"{self._file}:{line}: {problem}; {mend}")
