"""What runs in which format and why, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from precision_audit.records.findings import Evidence
from precision_audit.records.words import Mode


@dataclass(frozen=True, slots=True)
class Decision:
    """What one op runs in, and why. `chosen` is a format name, `fp8 rowwise` (format of its products, recipe) for a
    swap, `""` while a `follow` op waits for the plan. `promote` belongs to the amp policies: all float inputs are
    widened to the widest one's format."""

    op: str
    classification: str  # fp8-eligible · safe-in-<low> · follow · keep-<high> · pin:<format> · inherit · fixed
    chosen: str
    reason: str
    accumulate: str = ""  # format the op's sums are kept in on the device, "" if it sums nothing
    evidence: tuple[Evidence, ...] = ()
    promote: bool = False
    autocast: bool = False  # amp policies: inner ops are autocast, run the op inside an autocast region

    @property
    def swapped(self) -> bool:
        """Whether a swap was chosen: its arithmetic and its recipe, two words."""
        return " " in self.chosen


@dataclass(frozen=True, slots=True)
class Swap:
    """A linear that becomes another module at the same path, or (`covers`) several ops that become one with it.
    `constraints` are conditions on symbolic sizes that the user must keep (`B % 16 == 0 in backward`)."""

    op: str
    module: str
    backend: str
    recipe: str
    k: int | str
    n: int | str
    m: int | str
    constraints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what the user should know of this swap: tied weight, called twice, frozen
    kind: str = "Float8Linear"  # the class that takes the place, as its library calls it
    covers: tuple[str, ...] = ()  # further ops that it computes: a norm before, an activation and a linear after
    parameters: tuple[tuple[str, str], ...] = ()  # the class's own name of a parameter → the model's, where they differ
    options: tuple[tuple[str, object], ...] = ()  # further arguments of its constructor, by name
    recipe_options: tuple[tuple[str, object], ...] = ()  # further fields of the recipe, by the library's names

    @property
    def ops(self) -> tuple[str, ...]:
        """Keys of all ops that it computes."""
        return (self.op, *self.covers)

    @property
    def linears(self) -> tuple[str, ...]:
        """Keys of the linears among them; each is quantised."""
        return tuple(key for key in self.ops if key == self.op or key.rpartition("/")[2].startswith("linear#"))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A linear that was eligible by policy and stays in the low format, and why: it may not be swapped, or it may and
    is not worth it."""

    op: str
    module: str
    backend: str
    reason: str
    not_worth: bool = False  # it may, and is predicted to gain nothing


@dataclass(frozen=True, slots=True)
class Cast:
    """One conversion of one value, shared by `consumers` (op keys, or `output:i`)."""

    value: str
    to: str
    consumers: tuple[str, ...]
    bytes: int = 0  # read and written, at the example's shapes


@dataclass(frozen=True, slots=True)
class Fold:
    """A parameter or buffer stored in a low format instead of being cast at run time (inference). `copy` is true when
    high consumers keep the original beside it; `bytes` is then the size of the second copy."""

    value: str
    to: str
    consumers: tuple[str, ...] = ()
    copy: bool = False
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the charged model says of a plan; never shown like a measurement. Seconds, bytes."""

    seconds: float
    seconds_high: float  # everything in the high format
    cast_seconds: float
    cast_bytes: int
    error_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Format per op, casts, swaps and folds of one graph."""

    policy: str
    mode: Mode
    high: str
    low: str
    formats: tuple[tuple[str, str], ...]  # op key → format its float outputs have
    casts: tuple[Cast, ...]
    folds: tuple[Fold, ...] = ()
    swaps: tuple[Swap, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    autocast: tuple[str, ...] = ()  # op keys to be run inside an autocast region (amp policies)
    autocast_device: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    predicted: Predicted | None = None
    graph_digest: str = ""
