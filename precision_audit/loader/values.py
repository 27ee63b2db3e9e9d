"""Made-up values: what a tensor holds when the user gave only its shape.

Takes an input's name, format, shape and range; gives a tensor and the words that say how it was made. Floats without
a range are standard normal; integers without one are row numbers of an embedding of the model where it has any; masks
are all ones and positions count up, because anything else would exercise a path nobody runs. One generator, so that
values depend on the seed and the order of the inputs only.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from precision_audit import formats
from precision_audit.records import InputError

if TYPE_CHECKING:
    from precision_audit.loader.inputs import Spec

# Integer and boolean inputs that are known by their name: pattern of the argument's last part → how it is filled.
_BY_NAME = (
    ("*mask*", "ones"),
    ("*type_ids", "zeros"),
    ("*position*", "positions"),
)


def fill(spec: Spec, shape: tuple[int, ...], limit: int | None, generator: torch.Generator) -> tuple[torch.Tensor, str]:
    """A tensor for `spec` and how it was made. `limit` is the number of rows its integers may point at."""
    kind = spec.dtype
    if spec.low is not None and spec.high is not None:
        if kind.is_floating_point:
            span = spec.high - spec.low
            return (torch.rand(shape, generator=generator) * span + spec.low).to(kind), "uniform in the range"
        return torch.randint(int(spec.low), int(spec.high), shape, generator=generator).to(kind), "uniform in the range"
    if kind.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex64).to(kind), "standard normal"
    if kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind), "standard normal"
    known = by_name(spec.name)
    if known == "ones":
        return torch.ones(shape, dtype=kind), "ones"
    if known == "zeros":
        return torch.zeros(shape, dtype=kind), "zeros"
    if known == "positions" and shape:
        return torch.arange(shape[-1]).expand(shape).clone().to(kind), "0, 1, 2, ..."
    high = 2 if kind == torch.bool or limit is None else limit
    high = min(high, torch.iinfo(kind).max) if kind != torch.bool else high
    return torch.randint(0, high, shape, generator=generator).to(kind), f"integers 0..{high}"


def by_name(name: str) -> str:
    """How an integer input of this name is filled: "ones", "zeros", "positions" or ""."""
    last = name.rsplit(".", 1)[-1]
    return next((how for pattern, how in _BY_NAME if fnmatch.fnmatchcase(last, pattern)), "")


def index_limits(model: nn.Module, specs: Sequence[Spec]) -> dict[str, int]:
    """For each integer input without a range, the rows of the embedding it probably indexes: one input takes the
    first embedding, as many inputs as embeddings pair up in order, otherwise the smallest is safe for all."""
    rows = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    wanted = [
        spec.name
        for spec in specs
        if spec.low is None
        and not spec.dtype.is_floating_point
        and not spec.dtype.is_complex
        and not by_name(spec.name)
    ]
    if not rows or not wanted:
        return {}
    if len(wanted) == 1:
        return {wanted[0]: rows[0]}
    if len(wanted) == len(rows):
        return dict(zip(wanted, rows, strict=True))
    return dict.fromkeys(wanted, min(rows))


def dtype(name: str, whole: str) -> torch.dtype:
    """The torch dtype of a format's name or of torch's own name; `whole` is the text to quote in the error."""
    own: Any = getattr(torch, name, None) if name.isidentifier() else None
    if isinstance(own, torch.dtype):
        found = own
    elif name in formats.FORMATS:
        try:
            found = formats.dtype_of(name)
        except InputError as error:
            raise InputError(f"--input {whole}: torch has no tensors of format {name}; use fp32 or bf16") from error
    else:
        near = difflib.get_close_matches(name, [*formats.FORMATS, "int64", "int32", "bool", "float32", "bfloat16"], 1)
        mend = f"did you mean {near[0]}?" if near else "see: precision-audit list formats"
        raise InputError(f"--input {whole}: unknown format {name!r}; {mend}")
    try:
        torch.zeros(2).to(found)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise InputError(f"--input {whole}: torch cannot fill a tensor of {name}; use another format") from error
    return found


def check_range(kind: torch.dtype, low: float, high: float, whole: str) -> None:
    """A range must mean something for the format: whole numbers for integers, and inside what the format holds."""
    if kind == torch.bool or kind.is_complex:
        raise InputError(f"--input {whole}: a range means nothing for {format_name(kind)}; leave it out")
    if kind.is_floating_point:
        lowest, highest = torch.finfo(kind).min, torch.finfo(kind).max
    else:
        lowest, highest = torch.iinfo(kind).min, torch.iinfo(kind).max + 1
        if not (low.is_integer() and high.is_integer()):  # nor is an infinity
            raise InputError(
                f"--input {whole}: {format_name(kind)} needs whole numbers; expected a range such as 0..10"
            )
    if low < lowest or high > highest:
        raise InputError(
            f"--input {whole}: {format_name(kind)} holds {lowest:g}..{highest:g} only; give a range inside"
        )


def format_name(kind: torch.dtype) -> str:
    return formats.format_of(kind)
