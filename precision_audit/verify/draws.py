"""Random draws that are the same in every format, so that two models can be compared while dropout is on.

Takes nothing; `with Draws():` gives every random op of whatever runs inside the same draw that the fp32 model would
get. Never changes what an op computes from its draw, and leaves an explicit generator of the user's alone.

Measured on the CPU with torch 2.13: under one seed the dropout and Bernoulli masks of fp32, bf16 and fp16 are equal
element by element, but (1) a mask is drawn in memory order, so a tensor that the low format keeps in another layout
gets another mask, (2) uniform draws in bf16 and fp16 are other numbers than those in fp32, and (3) normal draws in
them may leave the generator in another state, which changes every mask that comes after. Each would be taken for an
error of the conversion. Hence here: each random op is seeded by one number drawn from the generator, so that what one
op consumes cannot shift the next; it draws in fp32 over a contiguous tensor; the result is rounded to the op's format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_LOW = (torch.bfloat16, torch.float16)
# Ops that do nothing but draw, or apply a mask by one rounding. Attention and recurrent ops carry the seeded tag too,
# and to widen those would hide the very error that is measured: they are seeded and otherwise left as they are.
_PURE = (
    {
        f"{name}{suffix}"
        for name in ("bernoulli", "cauchy", "exponential", "geometric", "log_normal")
        for suffix in ("", "_")
    }
    | {f"{name}{suffix}" for name in ("normal", "uniform", "rrelu_with_noise") for suffix in ("", "_")}
    | {"rand", "rand_like", "randn", "randn_like", "poisson", "multinomial", "native_dropout", "_fused_dropout"}
)
_UNIFORM = ("rand", "rand_like", "uniform", "uniform_")  # half-open: the upper end must not appear by rounding


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, random ops draw alike whatever the format and the memory layout of their tensors; those inside
    control flow (torch.cond, scan) draw as torch does."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        seed = int(torch.randint(1 << 62, ()))
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        try:
            return _draw(func, args, kwargs)
        finally:
            torch.set_rng_state(state)


def _draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = str(func.overloadpacket.__name__)
    if name not in _PURE:
        return func(*args, **kwargs)
    if torch.Tag.inplace in func.tags:
        target = args[0]
        drawn = func(_widened(target), *tree_map(_widened, args[1:]), **tree_map(_widened, kwargs))
        return target.copy_(_rounded(drawn, target.dtype, name))
    low = _low_format(args, kwargs)
    drawn = func(*tree_map(_widened, args), **tree_map(_widened, kwargs))
    return tree_map(lambda result: _rounded(result, low, name), drawn) if low else drawn


def _low_format(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The low format an op that returns a new tensor would give, None where it is not low."""
    if kwargs.get("dtype") is not None:
        return kwargs["dtype"] if kwargs["dtype"] in _LOW else None
    first = next((arg for arg in args if isinstance(arg, Tensor)), None)
    return first.dtype if first is not None and first.dtype in _LOW else None


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float32 if value in _LOW else value
    if not isinstance(value, Tensor):
        return value
    wide = value.float() if value.dtype in _LOW else value
    return wide.contiguous() if wide is not value else value.clone(memory_format=torch.contiguous_format)


def _rounded(value: Any, to: torch.dtype, name: str) -> Any:
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or to not in _LOW:
        return value
    low = value.to(to)
    if name in _UNIFORM:
        below = torch.nextafter(low, torch.full_like(low, -torch.inf))
        low = torch.where(low.float() > value, below, low)
    return low
