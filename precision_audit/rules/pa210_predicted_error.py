"""PA210 predicted error above the tolerance

What it does: adds up what every op that the policy lets run low contributes to the error of the outputs, by its own
rounding error on the example and by the gradient from there to the outputs. Where the sum exceeds the policy's
tolerance and a few ops are to blame for it, it names the heaviest; runs after all other rules and leaves out what they
keep high already.
Why it is a hazard: the model runs, nothing overflows, and the answer is wrong by more than was asked for. Steep
functions of a rounded number do that: a softmax of low temperature, a recurrence, a difference of large numbers.
What to do: keep the ops named in the high format (`convert` does), or rewrite them so that less depends on the last
bits. Where the error is spread over the products of the whole model, it is what the format costs: choose another one
or another tolerance.
References: Higham, Accuracy and Stability of Numerical Algorithms, chapter 3 (rounding error analysis).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from precision_audit import ops
from precision_audit.analyse.predicted_error import error_when_low, heaviest, weights
from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.sparing import may_run_low, outputs
from precision_audit.rules.upstream import PRODUCTS

LAST = 1

_GARBAGE = 0.1  # relative error from which an answer is no answer
_FEW = 4  # so many ops are few in any model
_PART = 0.2  # and so is this part of those that run low
_NAMED = 3


def check(context: Context) -> Iterator[Finding]:
    tolerance = dict(context.policy.tolerances).get("relative_l2")
    if tolerance is None or context.policy.autocast or not context.facts.shares:
        return
    kept = {key for finding in context.told if not finding.overridden for key in finding.pins}
    low = [key for key in may_run_low(context.decisions.values(), context.policy) if key not in kept]
    whole = math.sqrt(outputs(context.graph))
    swapped = [key for swap in context.swaps for key in swap.linears if key in low]
    predicted = error_when_low(context.facts.shares, low, context.graph, swapped) / whole
    if not math.isfinite(predicted) or predicted <= tolerance or not _seen(context, tolerance):
        return
    target = tolerance / 2 * whole
    pins = heaviest(context.facts.shares, low, context.graph, target, swapped=swapped)
    if _few(context, low, pins):
        yield _concentrated(context, predicted, tolerance, pins, swapped)
    else:
        made = _spread(context, predicted, tolerance, low, swapped)
        yield replace(made, bound=tolerance * whole)  # the plan may run fewer of them low than the policy allows


def _seen(context: Context, tolerance: float) -> bool:
    """Whether the model run wholly low is off by so much too: a prediction is to first order only, good to a factor of
    two at worst."""
    drifts = [context.as_cast[value].drift for value in context.graph.outputs if value in context.as_cast]
    return not drifts or max(drifts) > tolerance


def _few(context: Context, low: Sequence[str], pins: Sequence[str]) -> bool:
    """Few enough to be called the cause, or arithmetic beside the products, and not what the model is there to
    compute."""
    work = {op.key: ops.flops(op, [context.tensors[o.value] for o in op.operands]) for op in context.computed()}
    by_key = context.by_key()
    few = len(pins) <= max(_FEW, _PART * len(low)) or not any(by_key[key].kind in PRODUCTS for key in pins)
    return len(pins) > 0 and few and sum(work[key] for key in pins) <= sum(work.values()) / 2


def _concentrated(
    context: Context, predicted: float, tolerance: float, pins: Sequence[str], swapped: Sequence[str]
) -> Finding:
    adds = weights(context.facts.shares, swapped)
    ranked = sorted(pins, key=lambda key: (-adds.get(key, 0.0), key))
    names = ", ".join(ranked[:_NAMED]) + (f" and {len(ranked) - _NAMED} more" if len(ranked) > _NAMED else "")
    low, high = context.policy.low, context.policy.high
    return found(
        __name__,
        "error" if predicted >= max(_GARBAGE, tolerance) else "warning",
        context.by_key()[ranked[0]],
        f"predicted error of the outputs {predicted:.2g}, tolerance {tolerance:.2g} → most of it comes from {names} "
        f"in {low}",
        _evidence(context, predicted, tolerance, len(pins)),
        remedy=f"keep them in {high}, or rewrite them so that less depends on the last bits",
        pins=pins,
    )


def _spread(
    context: Context, predicted: float, tolerance: float, low: Sequence[str], swapped: Sequence[str]
) -> Finding:
    adds = weights(context.facts.shares, swapped)
    first = max(low, key=lambda key: adds.get(key, 0.0))
    name = "fp8" if first in swapped else context.policy.low
    return found(
        __name__,
        "warning" if predicted >= max(_GARBAGE, tolerance) and _seen(context, max(_GARBAGE, tolerance)) else "note",
        context.by_key()[first],
        f"predicted error of the outputs {predicted:.2g}, tolerance {tolerance:.2g} → spread over {len(low)} ops: "
        f"what {name} costs this model",
        _evidence(context, predicted, tolerance, len(low)),
        remedy="a format with more bits, or a tolerance that allows it",
    )


def _evidence(context: Context, predicted: float, tolerance: float, count: int) -> Evidence:
    return Evidence(
        "OBSERVED",
        f"sum of {len(context.facts.shares)} shares on the example: relative error {predicted:.3g}",
        (("predicted", predicted), ("tolerance", tolerance), ("ops", float(count))),
    )


# The other rules of accuracy are off: what they find is not said twice.
_ALONE = "name: alone\nextends: bf16-inference\nhazards: {PA204: off, PA205: off, PA207: off}\n"


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.project, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            stream = self.project(x) + 30.0  # PA210
            y: torch.Tensor = self.norm(stream)
            return y

    return Example(Model(), (torch.randn(32, 64, generator=torch.Generator().manual_seed(0)),), _ALONE)


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.project, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.norm(self.project(x))
            return y

    return Example(Model(), (torch.randn(32, 64, generator=torch.Generator().manual_seed(0)),), _ALONE)
