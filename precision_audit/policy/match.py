"""Which rule of a policy an op falls under: the first whose every condition holds.

Takes a policy and a graph; `Matcher.first(op)` gives the `Match`. Globs are over the whole string, `*` crosses dots,
so `mlp.gate` is that module alone and never `mlp.gate_proj`. Reads records only.

Sizes may hold symbols. Divisibility that symbols decide (16*s0) is decided; where they leave it open the rule matches
and the condition becomes a constraint that the user must keep, since a batch can be padded or its last part dropped.
A bound that symbols leave open (K at most 1) is judged by the example's size and stated as well.

An fp8-eligible rule that fits but for its sizes does not match; it is kept in `Match.missed`, so that the report can
say "N=10 is not a multiple of 16" instead of nothing.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from precision_audit.divisible import divisible
from precision_audit.policy.sizes import Size, size_of
from precision_audit.records import Graph, Op, Policy, Predicate, Rule, Tensor

STATE = ("input", "parameter", "buffer", "constant")  # kinds of ops that compute nothing

_divisible = lru_cache(maxsize=4096)(divisible)  # a model has few sizes and many ops


@dataclass(frozen=True, slots=True)
class Match:
    """`constraints` are conditions on symbolic sizes; `missed` are fp8-eligible rules refused for a size, with why."""

    rule: Rule
    constraints: tuple[str, ...] = ()
    missed: tuple[tuple[Rule, str], ...] = ()


class Matcher:
    """A policy's rules compiled for one graph. Made once; 20,000 ops cost a dictionary look-up each in the end."""

    def __init__(self, policy: Policy, graph: Graph) -> None:
        self._rules = tuple(_Compiled.of(rule) for rule in policy.rules)
        self._tensors: Mapping[str, Tensor] = {
            value: tensor for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)
        }
        self._computed = tuple(op for op in graph.ops if op.kind not in STATE)
        self._by_rule: dict[int, list[Op]] = {}
        self._places: dict[str, int] = {}
        self._by_op: dict[tuple[str, str, str], tuple[_Compiled, ...]] = {}
        self._by_place: dict[tuple[str, str, str, str, str], tuple[_Compiled, ...]] = {}

    def first(self, op: Op) -> Match:
        """The rule that decides `op`; the policy is total, so there is one."""
        missed: list[tuple[Rule, str]] = []
        for compiled in self._candidates(op):
            held, constraints, failures = self._conditions(compiled.rule, op)
            if held:
                return Match(compiled.rule, constraints, tuple(missed))
            if failures and compiled.rule.classification == "fp8-eligible":
                missed.append((compiled.rule, "; ".join(failures)))
        raise AssertionError(f"no rule matches {op.key}: the policy was not checked for a catch-all")

    def fitting(self, rule: Rule) -> tuple[Op, ...]:
        """The computed ops that `rule` would decide if it stood first, in graph order."""
        if not self._by_rule:
            for op in self._computed:
                for compiled in self._candidates(op):
                    self._by_rule.setdefault(id(compiled.rule), []).append(op)
        return tuple(op for op in self._by_rule.get(id(rule), ()) if self._conditions(rule, op)[0])

    def inputs(self, op: Op) -> tuple[Tensor, ...]:
        """The tensors that `op` reads, in the order of its operands."""
        return tuple(self._tensors[operand.value] for operand in op.operands)

    def _candidates(self, op: Op) -> tuple[_Compiled, ...]:
        name = (op.op, op.target, op.kind)
        place = (*name, op.module, op.module_type)
        found = self._by_place.get(place)
        if found is None:
            named = self._by_op.get(name)
            if named is None:
                named = self._by_op[name] = tuple(c for c in self._rules if c.fits_op(op))
            found = self._by_place[place] = tuple(c for c in named if c.fits_place(op))
        return found

    def _conditions(self, rule: Rule, op: Op) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
        """Whether all conditions hold, what they leave to the user, and which sizes break them."""
        if not rule.where:
            return True, (), ()
        constraints: list[str] = []
        failures: list[str] = []
        for predicate in rule.where:
            size = self._place(op) if predicate.key == "place" else size_of(op, predicate.key, self._tensors)
            if size is None:
                if not _attribute_holds(predicate, dict(op.attributes)):
                    return False, (), ()
            else:
                _size_holds(predicate, size, constraints, failures)
        return not failures, tuple(dict.fromkeys(constraints)), tuple(failures)

    def _place(self, op: Op) -> Size:
        """In percent; an op that is the only one of its name is the first."""
        if not self._places:
            by_name: dict[str, list[str]] = {}
            for each in self._computed:
                by_name.setdefault(each.op, []).append(each.key)
            for keys in by_name.values():
                last = max(len(keys) - 1, 1)
                self._places.update((key, 100 * number // last) for number, key in enumerate(keys))
        place = self._places.get(op.key, 0)
        return Size(place, place)


def glob(pattern: str) -> re.Pattern[str]:
    """The pattern over the whole string."""
    return re.compile(fnmatch.translate(pattern))


def bad_glob(pattern: str) -> str:
    """Why a glob cannot be meant as written, or nothing."""
    if not pattern.strip() or pattern != pattern.strip():
        return "empty, or blanks around it"
    inside = False
    for i, letter in enumerate(pattern):
        if letter == "[" and not inside:
            inside, start = True, i
        elif letter == "]" and inside and i > start + 1:
            inside = False
        elif letter == "]" and not inside:
            return "']' without '['"
    return "'[' is never closed" if inside else ""


def is_glob(pattern: str) -> bool:
    return any(letter in pattern for letter in "*?[")


def is_catch_all(rule: Rule) -> bool:
    """Whether the rule matches every op."""
    return not rule.where and all(not one or "*" in one for one in (rule.op, rule.kind, rule.module, rule.module_type))


@dataclass(frozen=True, slots=True)
class _Compiled:
    rule: Rule
    op: re.Pattern[str] | None
    module: re.Pattern[str] | None
    module_type: re.Pattern[str] | None

    @classmethod
    def of(cls, rule: Rule) -> _Compiled:
        return cls(rule, _any_of(rule.op), _any_of(rule.module), _any_of(rule.module_type))

    def fits_op(self, op: Op) -> bool:
        if self.rule.kind and "*" not in self.rule.kind and op.kind not in self.rule.kind:
            return False
        # `pow` is every overload of pow, `pow.Tensor_Scalar` is one
        overload = f"{op.op}.{op.target.rpartition('.')[2]}"
        return self.op is None or bool(self.op.match(op.op) or self.op.match(overload))

    def fits_place(self, op: Op) -> bool:
        if self.module is not None and not self.module.match(op.module):
            return False
        kind = op.module_type
        return self.module_type is None or bool(
            self.module_type.match(kind) or self.module_type.match(kind.rpartition(".")[2])
        )


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    if not patterns or "*" in patterns:
        return None
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))


def _attribute_holds(predicate: Predicate, attributes: Mapping[str, object]) -> bool:
    if predicate.key not in attributes:
        return False
    value = attributes[predicate.key]
    if predicate.equals is not None:
        return _plain(value) == _plain(predicate.equals)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if predicate.multiple_of is not None and value % predicate.multiple_of:
        return False
    return _within(predicate, value)


def _within(predicate: Predicate, value: float) -> bool:
    if predicate.minimum is not None and value < predicate.minimum:
        return False
    return predicate.maximum is None or value <= predicate.maximum


def _size_holds(predicate: Predicate, size: Size, constraints: list[str], failures: list[str]) -> None:
    """Appends to `failures` what is false and to `constraints` what only the user can make true."""
    name = predicate.key.upper() if len(predicate.key) == 1 else predicate.key
    if predicate.multiple_of is not None:
        found = _divisible(size.value, predicate.multiple_of)
        if found.verdict == "never":
            failures.append(f"{name}={size.value} is not a multiple of {predicate.multiple_of}")
        elif found.condition:
            constraints.append(found.condition)
    for bound, holds, sign, words in (
        (predicate.minimum, size.example >= (predicate.minimum or 0), ">=", "less than"),
        (predicate.maximum, size.example <= (predicate.maximum or 0), "<=", "more than"),
        (predicate.equals, size.example == predicate.equals, "==", "not"),
    ):
        if bound is None:
            continue
        if not holds:
            failures.append(f"{name}={size.example} is {words} {bound}")
        elif isinstance(size.value, str):
            constraints.append(f"{size.value} {sign} {bound}")


def _plain(value: object) -> object:
    """Lists and tuples compare alike, and a list of one like its element: dim=-1 is dim=[-1]."""
    if isinstance(value, (list, tuple)):
        return _plain(value[0]) if len(value) == 1 else tuple(_plain(item) for item in value)
    return value
