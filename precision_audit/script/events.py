"""What a script does, in the order in which it does it.

Gives `Event`, one thing done by one line, and `Loop`, one visit of a loop with the events inside it. Calls of the
script's own functions are followed, so that an event of `train_step` stands in the loop that calls it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from precision_audit.script.conditions import MOST_ATOMS, Atom, Guard, assignments, atoms, runs
from precision_audit.script.values import Value

TRAINING = ("backward", "unscale", "clip", "read", "step", "update", "zero", "foreign")  # what changes gradients


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """`kind`: forward, loss, backward, unscale, clip, read (a gradient's size), step, update, zero, cast (of a model),
    autocast (a region is entered), make (of an optimizer or scaler), autograd (torch.autograd.grad), dropped (a tensor
    is computed and no one takes it), foreign (code that is not in the file is handed an
    optimizer). `subject` is the model, optimizer or tensor it is about, `scaler` the GradScaler that does it."""

    kind: str
    node: ast.AST
    index: int
    subject: Value | None
    scaler: Value | None
    guards: tuple[Guard, ...]
    visits: tuple[int, ...]  # loops around it, outermost first
    contexts: tuple[Value, ...]  # of the `with` statements and decorators around it
    function: str
    text: str = ""  # a format, the dotted name of a function
    rare: bool = False  # in an exception handler
    sure: bool = True
    value: Value | None = None  # what it computed

    @property
    def line(self) -> int:
        return int(getattr(self.node, "lineno", 0))


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """The innermost loop around an optimizer's step and the backward before it; `node` None: a function that is called
    once for each batch by code outside the file."""

    node: ast.AST | None
    events: tuple[Event, ...]
    guards: tuple[Guard, ...] = ()  # what holds wherever the loop runs

    def scenarios(self, *needed: Event, kinds: tuple[str, ...]) -> Iterator[tuple[dict[Atom, bool], list[Event]]]:
        """Every way the tests in the loop can turn out such that all of `needed` run, and the events of these kinds
        that run then. None where there are too many tests."""
        chosen = [each for each in self.events if (each.kind in kinds and not each.rare) or each in needed]
        always = {guard for guard in self.guards}
        own = {each.index: tuple(guard for guard in each.guards if guard not in always) for each in chosen}
        open_atoms = frozenset().union(*(atoms(guards) for guards in own.values())) if own else frozenset()
        outside = tuple(guard for guard in self.guards if atoms([guard]) <= open_atoms)
        for truth in assignments(open_atoms):
            if runs(outside, truth) and all(runs(own[each.index], truth) for each in needed):
                yield truth, [each for each in chosen if runs(own[each.index], truth)]

    @property
    def too_open(self) -> bool:
        """Whether more tests than can be gone through decide what it does, so that little can be said of it."""
        training = [each for each in self.events if each.kind in TRAINING and not each.rare]
        always = set(self.guards)
        return len(frozenset().union(*(atoms(set(each.guards) - always) for each in training))) > MOST_ATOMS

    def of(self, *kinds: str) -> list[Event]:
        return [each for each in self.events if each.kind in kinds and not each.rare]


@dataclass(slots=True)
class Trace:
    """All events of a file, and its loops by visit."""

    events: list[Event] = field(default_factory=list)
    visited: dict[int, ast.AST] = field(default_factory=dict)
    entered: dict[int, tuple[Guard, ...]] = field(default_factory=dict)
    roots: list[tuple[int, int]] = field(default_factory=list)  # first and last event of each function nobody calls
