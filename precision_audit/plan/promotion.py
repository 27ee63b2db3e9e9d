"""PyTorch's own type promotion, as far as a plan relies on it.

Takes op names and the formats an op reads; gives the format it computes in without any cast. Names ops that promote
natively (a bf16 and an fp32 tensor give fp32, bit for bit as if the first were cast before) and ops that write in
place. Never runs an op: the tests do, for every name listed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch

from precision_audit.formats import dtype_of, format_of
from precision_audit.records import Op

# Elementwise arithmetic, comparisons, and ops that join tensors. In place, the other operands may have any float format
# and the result keeps the written tensor's.
_NAMES = (
    "add sub rsub mul div floor_divide fmod remainder pow atan2 hypot copysign xlogy logaddexp logaddexp2"
    " maximum minimum fmax fmin clamp clamp_min clamp_max addcmul addcdiv eq ne lt le gt ge"
    " where cat concat concatenate stack hstack vstack"
)
PROMOTING = frozenset(_NAMES.split())

# Reads its source in any format: the write converts.
CONVERTING_WRITES = frozenset({"copy_", "copy"})


def promotes(op: Op) -> bool:
    return op.op in PROMOTING


def writes_in_place(op: Op) -> bool:
    """An op whose result has the written tensor's format, whatever the formats of the operands beside it."""
    return op.op in CONVERTING_WRITES or (bool(op.mutates) and op.op in PROMOTING)


def promoted(formats: Iterable[str]) -> str:
    """The format that tensors of these formats promote to; "" for none."""
    result = ""
    for name in formats:
        result = _pair(result, name) if result else name
    return result


@lru_cache(maxsize=256)
def _pair(left: str, right: str) -> str:
    return left if left == right else format_of(torch.promote_types(dtype_of(left), dtype_of(right)))
