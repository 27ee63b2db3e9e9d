"""Rounding to the element formats, to nearest, ties to even, saturating: fp8 by torch's own casts, fp4 and int8 here.

Takes scaled values in fp32; gives the nearest numbers of the format, in fp32. Beyond its largest finite value the
result is that value (torch's casts before 2.12 made NaN of it, so it is clamped first); NaN stays NaN but in int8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from precision_audit.formats import Format, dtype_of


def rounded(values: Tensor, element: Format) -> Tensor:
    """Nearest numbers of `element`."""
    if element.name == "int8":
        return values.round().clamp_(-128, 127).add_(0.0)  # integers have no negative zero
    limited = values.clamp(-element.max_finite, element.max_finite)
    if element.name == "fp4_e2m1":
        return _fp4(limited)
    return limited.to(dtype_of(element.name)).to(torch.float32)


def _fp4(values: Tensor) -> Tensor:
    """0, 0.5, 1, 1.5 | 2, 3 | 4, 6: steps of a half up to 2, of 1 up to 4, of 2 beyond."""
    size = values.abs()
    step = torch.full_like(size, 0.5).masked_fill_(size >= 2, 1.0).masked_fill_(size >= 4, 2.0)
    return (values / step).round_().mul_(step)
