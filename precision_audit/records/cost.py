"""What a plan is predicted to cost on a device; never shown like a measurement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Padding:
    """Sizes that would make a layer eligible, and what that costs: bytes of the larger weight, seconds with it."""

    k: int
    n: int
    m: int
    bytes: int
    seconds: float
    worth: bool = False  # still, with the larger sizes


@dataclass(frozen=True, slots=True)
class Layer:
    """One linear (or grouped product of experts) under one recipe: may it, and is it worth it? Two verdicts. It can be
    both and not be swapped, where the policy keeps it (`kept`)."""

    op: str
    module: str
    backend: str
    recipe: str
    k: int
    n: int
    m: int  # at the example's sizes; of one expert for a grouped product
    eligible: bool
    reason: str  # why not; "" where it is
    seconds: float  # with the recipe, 0.0 where it is not eligible
    seconds_low: float  # in the plan's low format
    swapped: bool
    padding: Padding | None = None  # where padding would make it eligible
    auto_filter: Literal["", "convert", "skip"] = ""  # what torchao's own filter says; "" where it says nothing
    not_worth: str = ""  # why it is not worth it; "" where it is, or may not anyway
    constraints: tuple[str, ...] = ()  # conditions on symbolic sizes under which it may
    kept: str = ""  # the policy's rule that keeps it out, where it may

    @property
    def speed_up(self) -> float:
        """Predicted; above 1 it is worth it. 0.0 where it is not eligible."""
        return self.seconds_low / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the peak, by what they hold. `copies`: weights kept in a second format (fp8, low copies)."""

    weights: int
    activations: int
    gradients: int = 0
    optimizer: int = 0
    copies: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.gradients + self.optimizer + self.copies


@dataclass(frozen=True, slots=True)
class OpCost:
    """Seconds of one op: in the high format, in the low one, under the plan. `bound` is what limits it there."""

    op: str
    flops: int
    bytes: int
    seconds_high: float
    seconds_low: float
    seconds: float
    bound: Literal["", "compute", "memory", "launch"] = ""


@dataclass(frozen=True, slots=True)
class ModuleCost:
    """The sum over all ops below a module path ("" is the model)."""

    module: str
    seconds_high: float
    seconds_low: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one step: a forward pass, in training with backward and the optimizer's update."""

    device: str
    measured: bool  # the device's rates were measured, not read from a table
    seconds_high: float  # everything as captured: in the high format, unless the model is given in another
    seconds_low: float  # everything in the low format, no casts
    seconds: float  # the plan, casts included
    cast_seconds: float
    touchable: float  # share of `seconds_high` in ops whose format a plan may choose
    memory_high: Memory
    memory_low: Memory
    memory: Memory
    capacity: int  # bytes of the device, 0 where not known
    batch: int = 0  # rows of the example's batch, 0 where no dimension is known to be one
    largest_batch: int = 0  # that fits under the plan, 0 where not known
    largest_batch_high: int = 0
    update_seconds: float = 0.0  # of the optimizer, in each of the three sums
    ops: tuple[OpCost, ...] = ()
    modules: tuple[ModuleCost, ...] = ()
    layers: tuple[Layer, ...] = ()
    fp32_products: Literal["", "fp32", "tf32"] = ""  # how those in fp32 are priced where the device has TF32
    speed_up_over_high: float = field(init=False)  # above 1 the plan is the faster; 0.0 where it takes no time
    speed_up_over_low: float = field(init=False)

    def __post_init__(self) -> None:
        for name, other in (("high", self.seconds_high), ("low", self.seconds_low)):
            object.__setattr__(self, f"speed_up_over_{name}", other / self.seconds if self.seconds else 0.0)
