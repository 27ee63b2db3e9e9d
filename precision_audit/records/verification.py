"""The converted model beside the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output (or gradient) of the converted model against the reference, beside plain low precision's."""

    name: str
    relative_l2: float
    max_abs: float
    sqnr_db: float
    cosine: float
    nonfinite: int
    reference_nonfinite: int
    flip_rate: float | None  # share of rows whose argmax differs; None where argmax means nothing
    plain_relative_l2: float | None  # the same figure when everything runs in the low format
    limit: float | None = None
    passed: bool = True
    row_median: float | None = None  # of the rows' own relative L2; None where the output has no rows
    plain_row_median: float | None = None
    figure: str = "relative L2"  # what relative_l2 holds: for an integer or bool output "elements changed", a share
    compared: bool = True  # False where no batch gave an element that is finite in the reference: nothing was proved


@dataclass(frozen=True, slots=True)
class Step:
    """One training step of the reference and the converted model. Errors are relative: of the loss (absolute where a
    projection stands for it), and of the worst gradient, that of the parameter `gradient`. The noise is the same of the
    reference against itself under another seed, zero where the model draws nothing."""

    loss: float
    converted_loss: float
    plain_loss: float | None  # wholly in the low format
    loss_error: float
    gradient: str
    gradient_error: float
    loss_noise: float = 0.0
    gradient_noise: float = 0.0
    scale: float = 1.0  # what the converted model's loss was multiplied by
    skipped: bool = False  # its gradients were not finite, so that its update was left out
    gradient_errors: tuple[tuple[str, float], ...] = ()  # of every parameter


@dataclass(frozen=True, slots=True)
class Steps:
    """Training steps from the same weights, on the same batches, under the same draws."""

    steps: tuple[Step, ...]
    optimizer: str = ""  # its class; "" where the weights stayed
    objective: Literal["loss", "projection"] = "loss"
    passed: bool = True
    notes: tuple[str, ...] = ()

    @property
    def skipped(self) -> int:
        """How many updates were left out."""
        return sum(step.skipped for step in self.steps)


@dataclass(frozen=True, slots=True)
class Verification:
    passed: bool
    outputs: tuple[Comparison, ...]
    gradients: tuple[Comparison, ...] = ()
    reference: str = ""  # what reference against itself gave
    captured_against_eager: str = ""
    shapes: str = ""  # "pass", or the text of the failure of forward + backward on the meta device
    first_parting: str = ""  # op key of the first op at which converted and reference part, when failed
    emulated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    device: str = "CPU"  # where both were run
    noise: float = 0.0  # the reference's difference from itself in units of the limit; from 1 on nothing can be judged
    steps: Steps | None = None  # None where no loss or optimizer was given
