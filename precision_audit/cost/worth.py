"""Is a swap that is possible also worth it? The second of two verdicts; whether it is possible is a backend's to say.

Takes an op, the tensors it reads (example's sizes), a recipe, the low format and a device; gives predicted seconds
with and without the recipe and, where it is not worth it, the reason. Never asks whether the recipe fits the sizes.

The rule, the same for `swap: worth-it`, for the report and for PA403. A swap is worth it where

  1. it is predicted faster than the low format, at the example's M, in the policy's mode; and
  2. on an H100, under a recipe for which torchao has an automatic filter (tensorwise, rowwise), that filter converts
     a layer of these sizes.

torchao drew its filter's limits from measurements on H100s, so where it says no the roofline does not overrule it. It
says yes without looking at M: a batch of 16 rows gains nothing at any K and N, so its yes needs the prediction too.
Elsewhere (other devices, `rowwise_with_gw_hp`, for which torchao raises, every other backend) the prediction decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from precision_audit import recipes
from precision_audit.cost import roofline, swapped
from precision_audit.records import Hardware, Mode, Op, Tensor

Filter = Literal["", "convert", "skip"]

_MULTIPLE = 16
_DOUBLINGS = 12  # 4096 times the example's rows


@dataclass(frozen=True, slots=True)
class Worth:
    """`reason` says why it is not worth it, "" where it is."""

    seconds: float
    seconds_low: float
    auto_filter: Filter
    reason: str

    @property
    def speed_up(self) -> float:
        """How many times as fast as in the low format; 0.0 where nothing is known of the price."""
        return self.seconds_low / self.seconds if self.seconds else 0.0


def worth(
    op: Op, inputs: Sequence[Tensor], backend: str, recipe: str, low: str, hardware: Hardware, mode: Mode
) -> Worth:
    """The verdict on a linear. `inputs` are its input, weight and bias, in this order."""
    row = recipes.RECIPES.get((backend, recipe))
    if row is None:  # of a backend without a row: nothing is known of its price
        return Worth(0.0, 0.0, "", "")
    with_it = swapped.seconds(op, inputs, row, low, hardware, mode)
    without = roofline.op_seconds(op, inputs, low, hardware, mode)
    n, k = inputs[1].hint
    said = auto_filter(recipe, k, n) if backend == "torchao" and "H100" in hardware.title else ""
    rows = "x".join(str(size) for size in inputs[0].hint[:-1]) or "1"
    figures = f"predicted {_micro(with_it)} with {recipe}, {_micro(without)} in {low} (M={rows})"
    if with_it >= without:
        return Worth(with_it, without, said, f"not worth it: {figures}")
    if said == "skip":
        measured = f"torchao's measurements on H100 have {recipe} gain nothing at K={k}, N={n}"
        return Worth(with_it, without, said, f"not worth it: {measured} (its automatic filter); {figures}")
    return Worth(with_it, without, said, "")


def pays_at(
    op: Op, inputs: Sequence[Tensor], backend: str, recipe: str, low: str, hardware: Hardware, mode: Mode
) -> tuple[int, Worth] | None:
    """The first number of rows, doubled from the example's, at which the swap is worth it, and the verdict there; None
    where no number within reach is: K and N are too small, or the device gains nothing by the recipe."""
    (n, k), m = inputs[1].hint, prod(inputs[0].hint[:-1])
    for _ in range(_DOUBLINGS):
        m *= 2
        judged = worth(*resized(op, inputs, k, n, m), backend, recipe, low, hardware, mode)
        if not judged.reason:
            return m, judged
        if judged.seconds < judged.seconds_low:
            return None  # what stands against it then looks at K and N alone
    return None


def auto_filter(recipe: str, k: int, n: int) -> Filter:
    """What torchao's `_auto_filter_for_recipe` (0.18, no names excluded) says of an nn.Linear(k, n); "" where it raises
    NotImplementedError. Its limits were measured on H100s: torchao/float8/README."""
    if recipe not in ("tensorwise", "rowwise"):
        return ""
    if k % _MULTIPLE or n % _MULTIPLE:
        return "skip"
    small_tensorwise = k <= 4096 and n <= 1024
    small_rowwise = n <= 2048 or k <= 1024 or (n <= 4096 and k <= 2048)
    return "skip" if (small_tensorwise if recipe == "tensorwise" else small_rowwise) else "convert"


def resized(op: Op, inputs: Sequence[Tensor], k: int, n: int, m: int) -> tuple[Op, list[Tensor]]:
    """The same linear of other sizes, y[m, n] = x[m, k] · w[n, k] transposed."""
    shapes = [(m, k), (n, k), *([(n,)] * (len(inputs) - 2))]
    changed = [replace(each, shape=size, hint=size) for each, size in zip(inputs, shapes, strict=True)]
    return replace(op, outputs=(replace(op.outputs[0], shape=(m, n), hint=(m, n)),)), changed


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs"
