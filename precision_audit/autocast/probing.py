"""Does an op raise in these formats? Run for real on small stand-ins, since tensors without memory seldom tell.

Takes an op's target with its arguments in two versions, with the formats in question and as captured (tensors may be
fake); gives the first line of the error that the first version raises, "" if it raises none, None if that cannot be
told. PyTorch's shape functions check few formats: of thirty ops that refuse mixed formats, they let half pass.

A stand-in holds ones (integers: zeros, valid as an index into anything). Sizes are cut to at most 16, equal sizes
alike, because a kernel looks at formats before it computes. Data can make an op raise too (a singular matrix, an index
out of range), so the captured formats are run on the same stand-ins: only what they do not raise counts, or an error
that speaks of formats. Never touches the caller's tensors, leaves random state and autocast as they were; answers are
kept, so that a hundred equal layers ask once.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from precision_audit import records as record
from precision_audit.autocast.dry_run import call_of, overload_of, region
from precision_audit.records import Op, first_line

_CUT = 16  # sizes of stand-ins
_AFFORDABLE = 1 << 20  # elements of all arguments, where only the true sizes fit together
_SIZES = ("normalized_shape",)  # arguments that repeat sizes of tensors
_OF_FORMATS = re.compile(
    r"not implemented for|d-?type|scalar ?type|type promot|same type|data type|Half|BFloat16|"
    r"without overflow|[Ll]ow precision|primitive descriptor"
)

Call = tuple[Sequence[Any], dict[str, Any]]


class Region(NamedTuple):
    """torch.autocast around the op; no `low`, no autocast."""

    device: str = "cpu"
    low: str = ""


NOWHERE = Region()

_answers: dict[Any, str | None] = {}


def raised(target: Any, asked: Call, captured: Call, around: Region = NOWHERE, backward: bool = False) -> str | None:
    """First line of the error, "" for none, None where it cannot be told. `backward`: the gradient kernel counts."""
    key = (str(target), _signature(asked), _signature(captured), around, backward)
    if key not in _answers:
        if len(_answers) > 4096:
            _answers.clear()
        _answers[key] = _ask(target, asked, captured, around, backward)
    return _answers[key]


# Writes whose source must have the format of the destination, whatever the indices, which a record holds in part.
_OF_ONE_FORMAT = frozenset(
    {
        "index_put",
        "index_copy",
        "index_add",
        "index_reduce",
        "masked_scatter",
        "scatter",
        "scatter_add",
        "scatter_reduce",
    }
)


def refuses(op: Op, given: Sequence[record.Tensor], captured: Sequence[record.Tensor]) -> bool:
    """Whether an op certainly raises on operands of these formats, which it does not on those captured."""
    if op.op in _OF_ONE_FORMAT:
        return True
    overload = overload_of(op.target)
    if overload is None:
        return False
    try:
        asked, was = (call_of(overload, op, operands, "meta") for operands in (given, captured))
    except Exception:  # an argument that is known only when the model runs
        return False
    return bool(raised(overload, asked, was))


def _ask(target: Any, asked: Call, captured: Call, around: Region, backward: bool) -> str | None:
    for limit in (_CUT, 0):
        if not limit and _elements(asked) > _AFFORDABLE:
            continue
        was = _run(target, captured, limit, NOWHERE, backward)
        now = _run(target, asked, limit, around, backward)
        if now == "" or was == "" or (now != was and _OF_FORMATS.search(now) and not _OF_FORMATS.search(was)):
            return now
    return None


def _run(target: Any, call: Call, limit: int, around: Region, backward: bool) -> str:
    try:
        args, kwargs = _stand_ins(target, call, limit, backward)
        with _alone(), region(around.device, around.low), torch.set_grad_enabled(backward):
            result = target(*args, **kwargs)
            if backward:
                _backward(result)
    except Exception as error:  # whatever it raises is the answer
        return first_line(error)
    return ""


def _backward(result: Any) -> None:
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if outputs:
        torch.autograd.backward([leaf.real.sum() if leaf.is_complex() else leaf.sum() for leaf in outputs])


@contextmanager
def _alone() -> Iterator[None]:
    """No warnings on the user's screen, and random numbers as if nothing had been drawn."""
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_rng_state(state)


def _stand_ins(target: Any, call: Call, limit: int, backward: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as real tensors on the CPU, sizes cut to `limit` (0: as they are)."""

    def cut(size: int) -> int:
        return min(size, limit) if limit else size

    def made(leaf: Tensor) -> Tensor:
        shape = [cut(int(size)) for size in leaf.shape]
        whole = not (leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype is torch.bool)
        tensor = torch.zeros(shape, dtype=leaf.dtype) if whole else torch.ones(shape, dtype=leaf.dtype)
        return tensor.requires_grad_(backward and not whole and leaf.dtype is not torch.bool)

    args, kwargs = pytree.tree_map_only(Tensor, made, (tuple(call[0]), dict(call[1])))
    kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), kwargs)
    schema = getattr(target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    args = tuple(
        [cut(size) for size in value] if name in _SIZES else value
        for name, value in zip([*names, *[""] * len(args)], args, strict=False)
    )
    return args, kwargs


def _elements(call: Call) -> int:
    leaves = pytree.tree_leaves((tuple(call[0]), dict(call[1])))
    return sum(math.prod(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor))


def _signature(call: Call) -> Any:
    leaves, spec = pytree.tree_flatten((tuple(call[0]), dict(call[1])))
    return tuple((leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves), str(
        spec
    )
