"""How near a decision is to being another: ranks, and comparisons with a number, against the error of what they read.

Takes the operand of a deciding op in the captured model and beside it in the low one; gives a `Flip`. A decision
between two elements flips when their rounding errors differ by more than the elements do: with independent errors of
standard deviation σ, the probability is that of a normal variable of σ√2 exceeding the margin; against a number that
has no error, of σ. An element that is that number, as zeros are, stays where it is. Judges nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from precision_audit.records import Flip, Op

_ALONG = frozenset({"argmax", "argmin", "max", "min", "sort", "argsort", "msort", "topk", "kthvalue", "mode"})
_AGAINST = frozenset({"gt", "greater", "ge", "greater_equal", "lt", "less", "le", "less_equal"})
_SMALLEST = frozenset({"argmin", "min", "kthvalue"})


def flip(op: Op, expected: Tensor, made: Tensor) -> Flip | None:
    """None for an op that decides nothing, or nothing between two."""
    ranks = op.op in _ALONG and any(tensor.format in ("int64", "int32") for tensor in op.outputs)
    threshold = dict(op.attributes).get("other") if op.op in _AGAINST else None
    compares = isinstance(threshold, int | float)
    if not (ranks or compares) or not expected.is_floating_point() or expected.shape != made.shape:
        return None
    exact = expected.detach().double()
    error = made.detach().double() - exact
    finite = torch.isfinite(error)
    if not bool(finite.any()):
        return None
    sigma = float(error[finite].pow(2).mean().sqrt())
    margins = (exact[finite] - threshold).abs() if isinstance(threshold, int | float) else _margins(op, exact)
    if margins is None:
        return None
    spread = sigma if compares else sigma * math.sqrt(2)
    risk = torch.special.erfc(margins / (spread * math.sqrt(2))) / 2 if sigma else torch.zeros_like(margins)
    if compares:
        risk[margins == 0] = 0.0
    return Flip(op.key, float(risk.mean()), float(margins.median()), sigma)


def _margins(op: Op, values: Tensor) -> Tensor | None:
    """Per row, how far the last element that is taken is from the first that is not (or the two best apart)."""
    given = dict(op.attributes)
    axis = given.get("dim", -1 if op.op in ("sort", "argsort", "topk", "kthvalue", "mode") else None)
    if op.op == "msort":
        axis = 0
    rows = values.reshape(1, -1) if not isinstance(axis, int) or values.ndim == 0 else values.movedim(axis, -1)
    taken = given.get("k", 1)
    count = taken if isinstance(taken, int) else 1
    if rows.shape[-1] <= count or not rows.numel():
        return None
    smallest = op.op in _SMALLEST or given.get("largest") is False
    best = torch.topk(rows.nan_to_num(), count + 1, dim=-1, largest=not smallest).values
    found = (best[..., count - 1] - best[..., count]).abs().reshape(-1)
    return found[torch.isfinite(found)] if math.isfinite(float(found.sum())) else found.nan_to_num(posinf=torch.inf)
