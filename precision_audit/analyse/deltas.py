"""What each op adds to the error by itself, kept until its gradient is known.

Takes, value by value, the difference of one op in the low format and in the captured one on the same rounded inputs;
gives them back to `sensitivity`, once per format: the low one, fp8 for linears that are to be swapped, and every
quantisation that a search may choose (`schemes`). Holds one batch of differences at most: above `LIMIT` bytes only
every n-th element is kept, the same ones of each value, and sums over them count n times. Measures nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from precision_audit.analyse.flips import flip
from precision_audit.formats import is_float
from precision_audit.records import Flip, Graph, Swap

SWAP = "swap:"  # what the source of a swapped linear's share begins with
LIMIT = 2 << 30  # bytes of differences in fp32; beyond it elements are left out


class Deltas:
    def __init__(
        self,
        graph: Graph,
        swaps: Iterable[Swap] = (),
        limit: int = LIMIT,
        schemes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.schemes = dict(schemes or {})  # by op
        size = 4 * sum(
            math.prod(tensor.hint) * (1 + len(self.schemes.get(op.key, ())))
            for op in graph.ops for tensor in op.outputs if is_float(tensor.format)
        )  # fmt: skip
        # odd, since sizes are rich in factors of two and an even stride would meet the same channels again and again
        self.stride = -(-size // limit) | 1 if size > limit else 1
        self.swaps = {swap.op: swap for swap in swaps}
        self.low: dict[str, Tensor] = {}  # by value
        self.swapped: dict[str, Tensor] = {}  # by op
        self.alternatives: dict[str, dict[str, Tensor]] = {}  # by op, then by source
        self.failed: set[str] = set()  # values whose op raised, or could not be run on the rounded inputs
        self.seeds: dict[str, int] = {}  # what each op's random draw was seeded with
        self.flips: list[Flip] = []
        self._ops = {op.key: op for op in graph.ops}

    def put(self, value: str, made: Tensor, expected: Tensor) -> None:
        """Keep `made` - `expected` for the low format; nothing where they agree."""
        delta = self.difference(made, expected)
        self.low.pop(value, None)  # of an earlier run
        if delta is not None and bool(delta.any()):
            self.low[value] = delta

    def offer(self, key: str, scheme: str, made: Tensor, expected: Tensor) -> None:
        """Keep the difference of one alternative; without one it counts as failed."""
        source, delta = swap_source(key, scheme), self.difference(made, expected)
        self.failed.discard(source)
        if delta is None:
            self.failed.add(source)
        else:
            self.alternatives.setdefault(key, {})[source] = delta

    def decided(self, key: str, expected: Any, made: Any) -> None:
        """How near the decision of an op is to another; its operand in the captured and in the low model."""
        if isinstance(expected, Tensor) and isinstance(made, Tensor) and not wrapped(expected):
            found = flip(self._ops[key], expected, made)
            self.flips.extend([found] if found is not None else [])

    def difference(self, made: Tensor, expected: Tensor) -> Tensor | None:
        """None where the two cannot be compared element by element."""
        dense = made.layout == expected.layout == torch.strided
        if made.shape != expected.shape or wrapped(made) or not made.is_floating_point() or not dense:
            return None
        wide = expected.dtype if expected.element_size() > 1 else torch.float32  # fp8 has no arithmetic of its own
        one, other = made.detach().to(wide), expected.detach().to(wide)
        apart = one - other
        limit = torch.finfo(made.dtype).max
        lowest, highest = (float(each) for each in other.aminmax()) if other.numel() else (0.0, 0.0)
        if not (-limit <= lowest and highest <= limit) or not math.isfinite(float(apart.sum())):
            beyond = other.abs() > limit
            # Equal infinities (a mask's) differ by nothing; nor does a mask of finfo.min that became the low format's,
            # or a limit that saturated: it stands for "very much", and how much makes no difference.
            same = (one == other) | (torch.isnan(one) & torch.isnan(other)) | (beyond & torch.isfinite(one))
            apart = torch.where(same, torch.zeros_like(apart), apart)
        return self.sampled(apart.float())

    def sampled(self, value: Tensor) -> Tensor:
        """Flat, every n-th element."""
        flat = value.reshape(-1)
        return flat if self.stride == 1 else flat[:: self.stride]


def swap_source(key: str, scheme: str = "") -> str:
    """Name of a swapped linear's share; of an alternative with the scheme by which it is quantised."""
    return f"{SWAP}{scheme}:{key}" if scheme else f"{SWAP}{key}"


def wrapped(value: Tensor) -> bool:
    """Inside the user's vmap, grad or jvp: not a tensor of its own."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))
