"""What a policy asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from precision_audit.records.words import Mode


@dataclass(frozen=True, slots=True)
class Predicate:
    """One condition of a policy rule on an attribute or a size: all given bounds must hold."""

    key: str
    multiple_of: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    equals: object = None


# A norm before the linear and an activation and a linear after it; the norm only; the linear alone.
FUSE = ("mlp", "norm", "none")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy. Empty tuples match everything. `origin` is `file:line`."""

    name: str
    origin: str
    classification: str
    op: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    module_type: tuple[str, ...] = ()
    where: tuple[Predicate, ...] = ()
    backend: str = ""
    recipe: str = ""
    promote: bool = False
    fuse: str = "mlp"  # what a swap may compute besides the linear, where the backend has a module for it: see FUSE
    recipe_options: tuple[tuple[str, object], ...] = ()  # fields of the backend's recipe object
    shipped: bool = False  # of a policy of this package, written for many models: matching nothing is no finding


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    file: str
    digest: str
    mode: Mode
    high: str
    low: str
    rules: tuple[Rule, ...]
    device: str = ""
    keep_io_types: bool = True
    swap: Literal["eligible", "worth-it"] = "eligible"
    casts: Literal["shared", "per_consumer"] = "shared"
    autocast: str = ""  # "cuda" or "cpu" for the amp policies: the device whose autocast is reproduced
    hazards: tuple[tuple[str, str], ...] = ()
    tolerances: tuple[tuple[str, float], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    description: str = ""
    hazard_origins: tuple[tuple[str, str], ...] = ()  # rule code → `file:line` of its entry in `hazards`

    @property
    def lowers(self) -> bool:
        """Whether any op may leave the high format."""
        high = (f"keep-{self.high}", f"pin:{self.high}")
        return self.low != self.high and any(rule.classification not in high for rule in self.rules)
