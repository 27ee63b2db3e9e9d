"""Weights to a safetensors file: every tensor once, each in its own format, nothing pickled.

Takes a state dict. Of several names for one tensor (a head tied to its embedding) the first is written; reading it
back into a model that ties them, as `checkpoint.load` does, misses nothing. Different views of one storage are copied
apart, as the file's format demands. fp32 masters stay fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from precision_audit.records import InputError


def write(state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write `state` to `path`; tensors on any device, sorted by name."""
    from safetensors.torch import save_file

    seen: set[object] = set()
    storages: set[object] = set()
    stored: dict[str, torch.Tensor] = {}
    for name in sorted(state):
        tensor = state[name].detach()
        if tensor.is_meta:
            raise InputError(f"{name} is on the meta device and has no values to save: load weights first")
        same = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        if tensor.numel() and same in seen:
            continue
        seen.add(same)
        tensor = tensor.contiguous()
        storage = tensor.untyped_storage()
        whole = storage.nbytes() == tensor.numel() * tensor.element_size()
        place = (storage.data_ptr(), tensor.device)
        stored[name] = tensor if whole and place not in storages else tensor.clone()
        storages.add(place)
    path.touch()
    mode = path.stat().st_mode  # save_file makes a file that only its owner can read
    save_file(stored, path)
    path.chmod(mode)
