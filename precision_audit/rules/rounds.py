"""The facts of each run of the low model, one after the other, for the rules to judge by.

Takes facts; gives for every run the ops that were kept high in it, and the facts with what that run has shown. Only
with the last one is everything known, the shares and what a suppression silences; they are left out before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from precision_audit.records import Facts, Finding

_RANK = {"note": 0, "warning": 1, "error": 2}


def rounds(facts: Facts) -> Iterator[tuple[frozenset[str], Facts]]:
    """Op keys kept high, and facts, in the order of the runs."""
    kept, seen = frozenset[str](), facts
    for each in facts.again:
        yield kept, replace(seen, shares=(), suppressions=())
        kept, seen = frozenset(each.kept), replace(facts, beside=each.beside, flips=each.flips, cast=())
    yield kept, seen


def added(
    known: Iterable[Finding], new: Iterable[Finding], said: Mapping[str, Finding], kept: frozenset[str]
) -> tuple[Finding, ...]:
    """`known` with what is new to the runs before, whose findings `said` has by fingerprint. What was a note behind
    lost elements, and is worse now that it can be seen, takes the place of the note and keeps its pins. Of ops that are
    `kept` high in this run the runs before have told; what is told of them again was not enough, and adds its pins."""
    fresh: list[Finding] = []
    worse: dict[str, Finding] = {}
    for each in new:
        before = said.get(each.fingerprint)
        if before is None:
            fresh.append(each)
        elif _RANK[each.severity] > _RANK[before.severity] and kept.isdisjoint((each.op, *before.pins)):
            worse[each.fingerprint] = replace(each, pins=tuple(dict.fromkeys((*each.pins, *before.pins))))
        elif each.op in kept and "note" not in (each.severity, before.severity):
            worse[each.fingerprint] = replace(before, pins=tuple(dict.fromkeys((*before.pins, *each.pins))))
    return (*(worse.get(each.fingerprint, each) for each in known), *fresh)
