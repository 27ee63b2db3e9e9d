"""What a person must know, on what evidence, and what the user says to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from precision_audit.records.graph import Source
from precision_audit.records.words import Basis, Severity


@dataclass(frozen=True, slots=True)
class Evidence:
    basis: Basis
    text: str
    numbers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Suppression:
    """A comment `# precision-audit: ignore[PA203] reason` in the user's code: findings of these rules (or prefixes) on
    line `target` are left out of counts. `codes` is empty where the comment names none."""

    file: str
    line: int  # of the comment
    target: int  # the line it speaks of: its own, or the next one where the comment stands alone
    codes: tuple[str, ...]
    reason: str
    text: str = ""  # the line as written
    # Where it closes a statement or a call over several lines: the first of them, all of which it speaks of; else 0.
    since: int = field(default=0, metadata={"written": False})

    def speaks_of(self, line: int) -> bool:
        """Whether a finding on that line of the file is meant."""
        return (self.since or self.target) <= line <= self.target


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person must know. `fingerprint` names it across runs and holds no measured number."""

    rule: str
    severity: Severity
    op: str
    module: str
    message: str
    evidence: Evidence
    source: Source | None = None
    remedy: str = ""
    resolved: bool = False  # the plan already applies the remedy
    fingerprint: str = ""
    pins: tuple[str, ...] = ()  # the remedy as the planner takes it: keys of ops that must run in the high format
    refuses: tuple[str, ...] = ()  # likewise: keys of ops that must not run in fp8 (no swap), but in the low format
    overridden: str = ""  # whose word kept the remedy from being applied: "turned off by policy mine.yaml:9"
    suppression: Suppression | None = None  # the comment in the user's code that leaves it out of counts
    # It holds only of a plan whose predicted error (root of `error_share`) exceeds this; 0 where it holds of any.
    bound: float = field(default=0.0, metadata={"written": False})

    @property
    def open(self) -> bool:
        """Whether it counts: neither the plan nor the user has dealt with it."""
        return not self.resolved and self.suppression is None
