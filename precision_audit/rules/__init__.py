"""Hazard rules: what can go wrong, one file each, found by listing this folder.

A rule is one file `pa501_unused_rule.py` here with

    a docstring      first line `PA501 title`; then what it does, why it is a hazard, what to do, references
    bad(), good()    an `Example` each: one the rule condemns, the guilty line marked `# PA501`, and one it does not
    check(context)   yields `Finding`s about a model, best made by `found`
    lint(script)     yields `Finding`s about the text of a training script: see `scripts`; a file has either or both

Adding a file adds a rule. A rule reads records only, changes nothing, and must say the same of the same input. The
policy's `hazards` set its severity or turn it off; that happens here, once, for all of them. Of a rule that is turned
off those findings stay whose remedy would have been applied, as notes. A rule file with `LAST = 1` runs after those
without and reads in `context.told` what they found; one with `LAST = 2` after all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

from precision_audit.records import (
    NO_FACTS,
    Beside,
    Decision,
    Evidence,
    Facts,
    Finding,
    Graph,
    Hardware,
    Inner,
    Op,
    Policy,
    Quantised,
    Range,
    Refusal,
    Rule,
    Severity,
    Source,
    Swap,
    Tensor,
)
from precision_audit.rules.listing import code_of, codes, module, nearest_code, offers
from precision_audit.rules.rounds import added, rounds
from precision_audit.suppressions import suppressed

if TYPE_CHECKING:
    from torch import nn

    from precision_audit.formats import Format
    from precision_audit.policy.match import Match, Matcher

__all__ = ["Context", "Example", "HazardRule", "code_of", "codes", "findings", "fingerprint", "found",
           "found_in_policy", "listed", "module", "nearest_code", "offers", "runs", "title"]  # fmt: skip

_PLACES = 3  # rules without `LAST`, and with 1 and 2
_LOW_FAMILIES = ("PA1", "PA2", "PA3")  # what happens in the low format: nothing, where no op may run in it


@dataclass(frozen=True)
class Context:
    """What a rule may look at. `matches` holds the policy rule of every computed op, by op key. A rule about a hazard
    of the low format (families 1 to 3) asks what would happen if an op ran low, whatever was decided of it: the
    decision may rest on that very rule."""

    graph: Graph
    policy: Policy
    hardware: Hardware
    decisions: Mapping[str, Decision]
    swaps: tuple[Swap, ...]
    refusals: tuple[Refusal, ...]
    matcher: Matcher
    matches: Mapping[str, Match]
    facts: Facts = NO_FACTS
    told: tuple[Finding, ...] = ()  # what the other rules found, for those that run last
    kept: frozenset[str] = frozenset()  # ops that were kept high in the low model beside the captured one

    def computed(self) -> Iterator[Op]:
        """The ops that were decided, in graph order."""
        return (op for op in self.graph.ops if op.key in self.decisions)

    def by_key(self) -> dict[str, Op]:
        return {op.key: op for op in self.graph.ops}

    @property
    def low(self) -> Format:
        """The low format with its limits."""
        from precision_audit.formats import FORMATS

        return FORMATS[self.policy.low]

    @cached_property
    def maker(self) -> Mapping[str, Op]:
        """The op that makes a value; inputs, parameters and buffers are ops too."""
        return {value: op for op in self.graph.ops for value in op.values}

    @cached_property
    def readers(self) -> Mapping[str, tuple[Op, ...]]:
        """The ops that read a value, in graph order, each once."""
        found: dict[str, dict[str, Op]] = {}
        for op in self.graph.ops:
            for operand in op.operands:
                found.setdefault(operand.value, {})[op.key] = op
        return {value: tuple(ops.values()) for value, ops in found.items()}

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Format and shape of every value."""
        return {value: tensor for op in self.graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)}

    @cached_property
    def moving(self) -> frozenset[str]:
        """Values that depend on an input of the model, or on a random draw."""
        from precision_audit.plain import of_inputs  # needs torch, which `lint` does without

        return of_inputs(self.graph)

    @cached_property
    def shared(self) -> dict[str, Any]:
        """What several rules work out of one context, under the name of the module that does."""
        return {}

    @cached_property
    def ranges(self) -> Mapping[str, Range]:
        """By value."""
        return {each.value: each for each in self.facts.ranges}

    @cached_property
    def beside(self) -> Mapping[str, Beside]:
        """By value."""
        return {each.value: each for each in self.facts.beside}

    @cached_property
    def as_cast(self) -> Mapping[str, Beside]:
        """By value, of the model as `.half()` or `.bfloat16()` leaves it: the user's own casts to the high format stay,
        and what is computed from them by promotion. Of the low model with ops kept high where there are any."""
        return {each.value: each for each in self.facts.cast} or self.beside

    @cached_property
    def inner(self) -> Mapping[str, tuple[Inner, ...]]:
        """By op key."""
        found: dict[str, list[Inner]] = {}
        for each in self.facts.inner:
            found.setdefault(each.op, []).append(each)
        return {key: tuple(each) for key, each in found.items()}

    @cached_property
    def quantised(self) -> Mapping[str, Mapping[str, Quantised]]:
        """By op key, then by scheme."""
        found: dict[str, dict[str, Quantised]] = {}
        for each in self.facts.quantised:
            found.setdefault(each.op, {})[each.scheme] = each
        return found

    def operand(self, op: Op, argument: str) -> str:
        """The first value that `op` reads as `argument`, "" if none."""
        return next((operand.value for operand in op.operands if operand.argument == argument), "")


@dataclass(frozen=True, slots=True)
class Example:
    """A model with inputs and a policy, a name or the text of one, that shows a hazard or its absence."""

    model: nn.Module
    args: tuple[Any, ...]
    policy: str = "bf16-inference"
    dynamic_shapes: Any = None
    loss: Callable[[Any], Any] | None = None
    optimizer: Callable[..., Any] | None = None


class HazardRule(Protocol):
    """What a file of this folder has to offer."""

    __doc__: str | None

    def bad(self) -> Example: ...

    def good(self) -> Example: ...

    def check(self, context: Context) -> Iterator[Finding]: ...


@cache
def listed() -> Mapping[str, HazardRule]:
    """Every rule by its code, sorted."""
    return MappingProxyType({code: cast(HazardRule, module(code)) for code in codes()})


def findings(context: Context) -> tuple[Finding, ...]:
    """What all rules say, with the severities the policy wants and the user's suppressions, sorted by rule, op and
    message. What is said of the low model holds, and to it is added what it hid behind lost elements."""
    known: tuple[Finding, ...] = ()
    for kept, facts in rounds(context.facts):
        known = _findings(replace(context, kept=kept, facts=facts), known)
    from precision_audit.rules.lossless import without_lossless  # needs torch, which `lint` does without

    known = tuple(without_lossless(known, context.graph, context.facts, context.policy.low))
    return tuple(sorted(known, key=lambda one: (one.rule, one.op, one.message)))


def _findings(context: Context, known: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """`known`, what the rules said of the runs of the low model before, with what they say of this one besides."""
    from precision_audit.rules.excused import excused  # needs torch, as `lossless` below

    policy, context = context.policy, replace(context, facts=excused(context))
    said = {each.fingerprint: each for each in known}
    able = [rule for code, rule in listed().items() if offers(code, "check") and runs(code, policy)]
    for place in range(_PLACES):
        seen = replace(context, told=known)
        made = (each for rule in able if _place(rule) == place for each in rule.check(seen))
        judged = _as_the_policy_wants(made if place else _spared(made, context), policy)
        known = suppressed(added(known, judged, said, context.kept), context.facts.suppressions)
    return known


def runs(code: str, policy: Policy) -> bool:
    """Whether the rule can say anything under the policy."""
    return policy.lowers or not code.startswith(_LOW_FAMILIES)


def _as_the_policy_wants(made: Iterable[Finding], policy: Policy) -> Iterator[Finding]:
    wanted, origins = dict(policy.hazards), dict(policy.hazard_origins)
    for one in made:
        severity = cast(Severity, wanted.get(one.rule, one.severity))
        if wanted.get(one.rule) != "off":
            yield replace(one, severity=severity)
        elif one.pins or one.refuses:
            by = f"turned off by policy {origins.get(one.rule, policy.name)}"
            yield replace(one, severity="note", overridden=by)


def _spared(made: Iterable[Finding], context: Context) -> Iterator[Finding]:
    """Findings of accuracy at an op that is right in a model that is cast, thanks to the user's own casts, are notes: a
    plan could run low what they keep high, and has to be told."""
    tolerance = dict(context.policy.tolerances).get("relative_l2", 0.0)
    ops = context.by_key()
    for one in made:
        near = [ops[key] for key in (one.op, *one.pins) if key in ops]
        near.extend(reader for op in list(near) for value in op.values for reader in context.readers.get(value, ()))
        there = [context.as_cast[value] for op in near for value in op.values if value in context.as_cast]
        right = bool(there) and all(each.drift <= tolerance and not each.lost + each.changed for each in there)
        spared = bool(context.facts.cast) and one.rule.startswith("PA2") and right and one.severity != "note"
        yield replace(one, severity="note", message=f"{one.message}; your own cast prevents that") if spared else one


def _place(rule: HazardRule) -> int:
    return int(getattr(rule, "LAST", 0))


def title(code: str) -> str:
    """The rule's title, from the first line of its docstring."""
    first = (listed()[code].__doc__ or "").strip().partition("\n")[0]
    return first.removeprefix(code).strip(" .:")


def found(
    module_name: str,
    severity: Severity,
    op: Op | None,
    message: str,
    evidence: Evidence,
    *,
    remedy: str = "",
    of: str = "",
    pins: Iterable[str] = (),
    refuses: Iterable[str] = (),
) -> Finding:
    """A finding of the rule in `module_name` about an op; `of` tells several findings at one op apart. As the remedy
    the planner is to keep `pins`, keys of ops, in the high format, and not to swap `refuses`."""
    code = code_of(module_name)
    key = op.key if op else ""
    return Finding(
        rule=code,
        severity=severity,
        op=key,
        module=op.module if op else "",
        message=message,
        evidence=evidence,
        source=op.source if op else None,
        remedy=remedy,
        fingerprint=fingerprint(code, key, of),
        pins=tuple(dict.fromkeys(pins)),
        refuses=tuple(dict.fromkeys(refuses)),
    )


def found_in_policy(
    module_name: str, severity: Severity, rule: Rule, message: str, evidence: Evidence, *, remedy: str = ""
) -> Finding:
    """A finding about a rule of the policy file; its source is that file's line."""
    file, _, line = rule.origin.rpartition(":")
    made = found(module_name, severity, None, message, evidence, remedy=remedy, of=rule.name)
    return replace(made, source=Source(file, int(line), "", f"name: {rule.name}"))


def fingerprint(*parts: str) -> str:
    """Names a finding across runs: from its rule and place, never from anything measured."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
