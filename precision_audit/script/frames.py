"""Where a walk stands: the names in reach, and the loops and functions it is in."""

from __future__ import annotations

from dataclasses import dataclass, field

from precision_audit.script.conditions import Formula
from precision_audit.script.values import Value


@dataclass(eq=False)
class Scope:
    """Names of one function, or of the file."""

    names: dict[str, Value] = field(default_factory=dict)
    outer: Scope | None = None

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None


@dataclass(eq=False)
class Frame:
    """A loop or a function being walked; `left`: when a `continue`, `break`, `return` or `raise` has left it."""

    start: int
    visit: int | None = None
    left: list[Formula] = field(default_factory=list)
    returned: list[Value] = field(default_factory=list)
