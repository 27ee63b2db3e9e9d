"""Rules about training scripts: the files of this folder that offer `lint(script)`.

Takes a `Script`; gives what these rules say of it, with the user's suppressions, in the order of its lines. Such a rule
file is like any other (see the package), but for its `bad()` and `good()`, which return a `ScriptExample`. Only the
files that have a `lint` are imported: those about models need torch, which a lint in an editor cannot wait for.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Protocol, cast

from precision_audit import rules
from precision_audit.records import SEVERITIES, Evidence, Finding, Severity, Source
from precision_audit.script import Script, Value
from precision_audit.suppressions import suppressed


@dataclass(frozen=True, slots=True)
class ScriptExample:
    """A training script that shows a hazard, the guilty line marked `# PA620`, or its absence."""

    text: str


class ScriptRule(Protocol):
    """What such a file has to offer."""

    __doc__: str | None

    def bad(self) -> ScriptExample: ...

    def good(self) -> ScriptExample: ...

    def lint(self, script: Script) -> Iterator[Finding]: ...


@cache
def listed() -> Mapping[str, ScriptRule]:
    """Every rule about scripts by its code, sorted."""
    chosen = [code for code in rules.codes() if rules.offers(code, "lint")]
    return MappingProxyType({code: cast(ScriptRule, rules.module(code)) for code in chosen})


def findings(script: Script) -> tuple[Finding, ...]:
    """What all of them say, each thing once, by line."""
    first = (one for rule in listed().values() if not getattr(rule, "LAST", False) for one in rule.lint(script))
    told = suppressed(_once(first), script.suppressions)
    seen = replace(script, told=told)
    last = [one for rule in listed().values() if getattr(rule, "LAST", False) for one in rule.lint(seen)]
    return tuple(sorted((*told, *last), key=lambda one: (one.source.line if one.source else 0, one.rule, one.message)))


def found_at(
    module_name: str,
    script: Script,
    node: ast.AST,
    severity: Severity,
    message: str,
    fix: str,
    *,
    of: Iterable[Value | None] = (),
    function: str = "",
) -> Finding:
    """A finding of the rule in `module_name` at a line of a script, about the scalers, optimizers and models in `of`.
    PROVED: the text alone says so; ASSUMED: one of these is taken for what it is by its name, since the file does not
    make it."""
    line = int(getattr(node, "lineno", 1))
    code, text = rules.code_of(module_name), script.line(line)
    return Finding(
        rule=code,
        severity=severity,
        op="",
        module="",
        message=message,
        evidence=_evidence(of),
        source=Source(script.file, line, function, text),
        remedy=fix,
        fingerprint=rules.fingerprint(code, os.path.basename(script.file), function, text),
    )


def _evidence(of: Iterable[Value | None]) -> Evidence:
    guessed = dict.fromkeys(each.name for each in of if each is not None and each.kind == "unknown")
    if not guessed:
        return Evidence("PROVED", "read in the script, which was not run")
    return Evidence("ASSUMED", f"read in the script, which was not run; by their names: {', '.join(guessed)}")


def _once(made: Iterable[Finding]) -> Iterator[Finding]:
    """One finding of a rule at a line, the worst of several: a function may be called from several loops."""
    best: dict[tuple[str, int], Finding] = {}
    for one in made:
        place = (one.rule, one.source.line if one.source else 0)
        if place not in best or SEVERITIES.index(one.severity) < SEVERITIES.index(best[place].severity):
            best[place] = one
    yield from best.values()
