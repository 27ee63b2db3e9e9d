"""Whether a converted module can be called with these inputs, as captured.

Takes what the graph reads and the flat inputs of a call; raises ValueError in one line. Sizes are asked about inside
torch.compile too, formats not: what does not fit raises in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from precision_audit.formats import format_of


def check_sizes(sizes: Sequence[tuple[str, tuple[int | str, ...]]], flat: Sequence[Any]) -> None:
    """ValueError for an input whose fixed size differs from the captured one: numbers that the code computed from that
    size are constants of the graph, and would be wrong without a word. One symbol stands for one size."""
    known: dict[str, tuple[int, str]] = {}
    for (name, captured), value in zip(sizes, flat, strict=True):
        if not captured or not isinstance(value, torch.Tensor):
            continue
        given = tuple(value.shape)
        if len(given) != len(captured):
            raise ValueError(f"{name} has {len(given)} dimensions; expected {len(captured)}, as when it was captured")
        for axis, (was, now) in enumerate(zip(captured, given, strict=True)):
            if isinstance(was, int) and was != now:
                raise ValueError(
                    f"{name} has size {now} in dimension {axis}; expected {was}, which was fixed when it was captured; "
                    f"to leave it open convert with dynamic_shapes={{'{name}': {{{axis}: torch.export.Dim('N')}}}} or "
                    "name the dimension in --input"
                )
            if isinstance(was, str) and was.isidentifier():
                first, place = known.setdefault(was, (now, f"dimension {axis} of {name}"))
                if first != now:
                    raise ValueError(
                        f"{name} has size {now} in dimension {axis}; expected {first}, the size of {place}: both were "
                        "captured as one size"
                    )


def check_formats(graph: fx.Graph, flat: Sequence[Any]) -> None:
    """ValueError for a float input in another format than the 16-bit one that the graph reads it in."""
    inputs = (node for node in graph.nodes if node.op == "placeholder")
    for node, value in zip(inputs, flat, strict=True):
        read = node.meta.get("val")
        if not isinstance(read, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        low = read.dtype in (torch.bfloat16, torch.float16)
        if low and value.is_floating_point() and value.dtype != read.dtype:
            raise ValueError(
                f"{node.target} is {format_of(value.dtype)}; expected {format_of(read.dtype)}, in which this module "
                "reads it: call module(*args, **kwargs) with args, kwargs = module.as_read(args, kwargs)"
            )
