"""Where a format ends, and how much of a value lies beyond: shared by the overflow rules."""

from __future__ import annotations

import math

from precision_audit.formats import Format
from precision_audit.records import Range


def overflows_at(format: Format) -> float:
    """The smallest magnitude that rounds to infinity: half a step above the largest finite number."""
    exponent = math.frexp(format.max_finite)[1] - 1
    return format.max_finite + math.ldexp(1.0, exponent - (format.mantissa_bits or 0) - 1)


def share_beyond(seen: Range, limit: float) -> float:
    """The share of elements beyond `limit`, from the histogram, so to a factor of two in magnitude."""
    beyond = sum(number for exponent, number in seen.histogram if math.ldexp(1.0, exponent + 1) > limit * 1.001)
    return min(1.0, max(1, beyond) / max(1, seen.count))
