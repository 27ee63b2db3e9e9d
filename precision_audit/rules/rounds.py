"""The facts of each run of the low model, one after the other, for the rules to judge by.

Takes facts; gives for every run the ops that were kept high in it, and the facts with what that run has shown. Only
with the last one is everything known, the shares and what a suppression silences; they are left out before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from precision_audit.records import Facts


def rounds(facts: Facts) -> Iterator[tuple[frozenset[str], Facts]]:
    """Op keys kept high, and facts, in the order of the runs."""
    kept, seen = frozenset[str](), facts
    for each in facts.again:
        yield kept, replace(seen, shares=(), suppressions=())
        kept, seen = frozenset(each.kept), replace(facts, beside=each.beside, flips=each.flips, cast=())
    yield kept, seen
