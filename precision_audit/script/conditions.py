"""Conditions under which a line of a script runs, and every way they can turn out.

Takes tests of `if` statements as formulas over atoms; gives the scenarios of a list of events: one truth value for each
atom, and the events that run under it. An atom is a test that the text does not decide (`use_amp`, `scaler is None`,
`(step + 1) % every == 0`); the same test of the same value is the same atom wherever it stands, so that two `if
use_amp:` agree with each other. Never guesses how a test turns out, and gives up where there are too many of them.

A formula is True, False, `Atom`, or a tuple ("not", f), ("and", f, g, …), ("or", f, g, …).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

MOST_ATOMS = 9  # 512 scenarios; a loop with more open tests is left alone


@dataclass(frozen=True, slots=True)
class Atom:
    """One undecided test. `varies`: it turns out differently from one batch to the next."""

    text: str
    varies: bool = False


Formula = bool | Atom | tuple  # type: ignore[type-arg]
Guard = tuple[Formula, bool]  # a formula and how it turned out


def negated(formula: Formula) -> Formula:
    if isinstance(formula, bool):
        return not formula
    if isinstance(formula, tuple) and formula[0] == "not":
        return formula[1]  # type: ignore[no-any-return]
    return ("not", formula)


def joined(word: str, formulas: Iterable[Formula]) -> Formula:
    """`and` or `or` of several, decided as far as constants decide it."""
    decisive = word == "or"
    parts = [each for each in formulas if each is not (not decisive)]
    if any(each is decisive for each in parts):
        return decisive
    if not parts:
        return not decisive
    return parts[0] if len(parts) == 1 else (word, *parts)


def holds(formula: Formula, truth: Mapping[Atom, bool]) -> bool:
    if isinstance(formula, bool):
        return formula
    if isinstance(formula, Atom):
        return truth[formula]
    word, *parts = formula
    if word == "not":
        return not holds(parts[0], truth)
    return (all if word == "and" else any)(holds(each, truth) for each in parts)


def runs(guards: Iterable[Guard], truth: Mapping[Atom, bool]) -> bool:
    return all(holds(formula, truth) is wanted for formula, wanted in guards)


def atoms(guards: Iterable[Guard]) -> frozenset[Atom]:
    return frozenset(atom for formula, _ in guards for atom in _atoms(formula))


def assignments(open_atoms: Iterable[Atom]) -> Iterator[dict[Atom, bool]]:
    """Every way in which the atoms can turn out; none where there are too many."""
    names = sorted(set(open_atoms), key=lambda atom: atom.text)
    if len(names) > MOST_ATOMS:
        return
    for values in itertools.product((True, False), repeat=len(names)):
        yield dict(zip(names, values, strict=True))


def _atoms(formula: Formula) -> Iterator[Atom]:
    if isinstance(formula, Atom):
        yield formula
    elif isinstance(formula, tuple):
        for each in formula[1:]:
            yield from _atoms(each)
