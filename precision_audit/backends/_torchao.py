"""What both torchao backends do before they build: import without the library's log, refuse what a swap would drop.

Takes a linear and its swap; raises InputError, or gives a context. Imports neither torch nor torchao itself.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_audit.backends._linear import PLAIN
from precision_audit.records import InputError, Swap

if TYPE_CHECKING:
    from torch import nn


def check_plain(linear: nn.Linear, swap: Swap) -> None:
    """InputError unless it is exactly an `nn.Linear` and has no hooks."""
    kind = f"{type(linear).__module__}.{type(linear).__qualname__}"
    if kind != PLAIN:
        raise InputError(
            f"{swap.module} is {kind}, not exactly nn.Linear: swap it for an nn.Linear first, or keep it out"
        )
    if linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks or linear._backward_pre_hooks:
        raise InputError(f"{swap.module} has hooks that a swap would drop: remove them before converting")


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Importing torchao logs which of its compiled kernels do not fit this machine; none of them is used here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
