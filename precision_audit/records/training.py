"""What training steps showed: gradients, updates, optimizer state, buffers."""

from __future__ import annotations

from dataclasses import dataclass

from precision_audit.records.graph import Source
from precision_audit.records.measured import Range


@dataclass(frozen=True, slots=True)
class Update:
    """What the optimizer did to one parameter over all steps, against what storing it in a low format would keep.

    `lost`: by format, the share of the non-zero updates that leave the element, rounded to the format, unchanged.
    `ratio`: by format, the median of |update| over half a unit in the last place of the element. `decay`: lr · weight
    decay, the share of the element that decay takes per step, 0 where there is none."""

    parameter: str
    count: int  # elements whose update is not zero, over all steps
    lost: tuple[tuple[str, float], ...]
    ratio: tuple[tuple[str, float], ...]
    decay: float = 0.0


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """One kind of tensor that the optimizer keeps for each parameter (`exp_avg_sq`), over all parameters."""

    name: str
    range: Range
    bytes: int  # in the format it was kept in


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The user's optimizer: class, the numbers of its first parameter group, where the user made it, its state.

    `spoiled`: the same optimizer over parameters in the low format, given the same gradients rounded to it: the share
    of the parameters' elements that are not finite afterwards; `spoiled_in` is the first step with one, -1 for none."""

    name: str
    options: tuple[tuple[str, float], ...]
    source: Source | None
    states: tuple[OptimizerState, ...] = ()
    spoiled: float = 0.0
    spoiled_in: int = -1
    masters: bool = False  # wrapped in MasterWeights, which updates fp32 copies


@dataclass(frozen=True, slots=True)
class Accumulated:
    """A float buffer that the model itself adds to while it runs: a counter, a total, a running statistic.

    `kept`: the share of the old value that goes into the new one: 1 in a counter or total, the momentum in a running
    average. `constant`: every element grew by this in every step (a counter), else 0. `step`: the largest change in the
    last step; `size`: the largest magnitude after it. `lost`: by format, the share of its non-zero changes that leave
    the element, rounded to the format, unchanged."""

    value: str
    writer: str  # key of the op that writes it
    kept: float
    constant: float
    step: float
    size: float
    lost: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class LossScale:
    """Powers of two that the loss may be multiplied by so that gradients fit a format.

    `sufficient`: the smallest from 1 on that keeps every gradient that matters from vanishing, decided by
    `sufficient_for`; `needed` is the same where it may be below 1. `safe`: the largest that leaves `margin` times the
    largest gradient finite, decided by `safe_for`; may be below 1. `recommended`: the smallest from `sufficient` on
    that brings 99 % of the gradients into the normal range, at most `safe`. Shares are of the gradients that are not
    zero: `vanish` without a scale, `vanish_scaled` with the recommended one."""

    format: str
    sufficient: float
    recommended: float
    safe: float
    sufficient_for: str
    safe_for: str
    margin: float
    vanish: float
    vanish_scaled: float
    needed: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether any scale keeps what matters and overflows nothing."""
        return (self.needed or self.sufficient) <= self.safe


@dataclass(frozen=True, slots=True)
class Training:
    """What a few real steps in the captured format showed; ranges are over all steps, gradients unscaled."""

    steps: int
    losses: tuple[float, ...]
    weights: tuple[Range, ...]
    weight_gradients: tuple[Range, ...]  # by parameter
    activations: tuple[Range, ...]
    activation_gradients: tuple[Range, ...]  # by the value they are the gradient of
    below: tuple[float, ...] = ()  # per step, the share of non-zero weight gradients below fp16's smallest, 2**-24
    updates: tuple[Update, ...] = ()
    optimizer: Optimizer | None = None
    scale: LossScale | None = None  # for the policy's low format
