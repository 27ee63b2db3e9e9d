"""Weights that a swap stores quantised, in a file of their own beside the others.

Takes a state dict, or a loaded module and the file; splits the one, fills the other. torchao's quantised tensors are
several plain ones (`qdata`, `scale`) under one name: the file holds each as `path.weight:qdata`, values of one byte as
bytes, since a safetensors file has no name for some of their formats. What they mean (recipe, block size) is built
again from the plan when the folder is loaded; only the numbers are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from precision_audit.records import InputError

FILE = "quantised.safetensors"


def apart(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The plain tensors of a state dict, and the parts of the quantised ones."""
    plain: dict[str, torch.Tensor] = {}
    parts: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        tensor = value.detach()
        if not hasattr(tensor, "__tensor_flatten__"):
            plain[name] = value
            continue
        for inner in tensor.__tensor_flatten__()[0]:  # copied, or only the first of a weight's two names is written
            parts[f"{name}:{inner}"] = _bytes(getattr(tensor, inner)).clone()
    return plain, parts


def names(path: Path) -> tuple[str, ...]:
    """Names in the state dict of what the file holds; none where there is no file."""
    from safetensors import safe_open

    if not path.is_file():
        return ()
    with safe_open(path, framework="pt") as opened:
        return tuple(sorted({key.rpartition(":")[0] for key in opened.keys()}))  # noqa: SIM118


def restore(module: nn.Module, path: Path) -> None:
    """Put the stored numbers into the quantised weights of a module that was built by the same plan."""
    from safetensors.torch import load_file

    for key, stored in load_file(path).items():
        name, _, inner = key.rpartition(":")
        weight = module.get_parameter(name)
        held = getattr(weight, inner, None) if hasattr(weight, "__tensor_flatten__") else None
        if held is None:
            raise InputError(
                f"{path.parent}: {name} was stored quantised by another device, and {weight.device} cannot run its "
                "recipe: give load() the model on the device it was converted on"
            )
        if _bytes(held).shape != stored.shape:
            raise InputError(f"{path.parent}: {key} has another shape than the model's: convert again")
        with torch.no_grad():
            _bytes(held).copy_(stored)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, seen as bytes where its values are of one byte."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
