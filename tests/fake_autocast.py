"""torch.autocast on fake tensors of a device that need not be there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def fake_autocast(device: str, low: torch.dtype) -> Iterator[None]:
    """Fake tensors and autocast on `device`; torch.autocast itself would switch off where there is no such device."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, low)
    try:
        with FakeTensorMode(), torch.no_grad():
            yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.clear_autocast_cache()
