"""Would the model take these inputs? Asked of a fake copy: shapes and formats only, no memory, no arithmetic.

Takes a module and inputs; gives the model's own error, or None. The copy is made of fake tensors, so that neither the
user's parameters nor the module's Python state are touched and a model of any size is tried in the time of its Python
code. A fake run can fail where the real one does not (a branch on a value), so such failures count as "unknown", and
`refusal` believes the fake error only when the real model, copied, fails too.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.utils import _pytree as pytree

_UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)


class Trial:
    """A fake copy of one model, to be tried with as many inputs as one likes. `failure` says why there is none."""

    def __init__(self, model: nn.Module) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.failure: Exception | None = None
        self.unknown = False  # the last run left the path that fake tensors can follow
        try:
            with FakeCopyMode(self.mode):
                self.model = copy.deepcopy(model)
            for module in self.model.modules():
                module.training = False  # a batch norm in training mode refuses a batch of one
        except Exception as error:
            self.failure = error

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
        """The model's own error for these inputs (real or fake tensors), None when it takes them."""
        self.unknown = self.failure is not None
        if self.failure is not None:
            return None
        try:
            with _quiet(), self.mode, torch.no_grad():
                fake_args, fake_kwargs = pytree.tree_map_only(torch.Tensor, self._fake, (tuple(args), dict(kwargs)))
                output = self.model(*fake_args, **fake_kwargs)
        except _UNKNOWN:
            self.unknown = True
            return None
        except Exception as error:
            return error
        if any(isinstance(leaf, torch.Tensor) for leaf in _tensors(output)):
            return None
        return TypeError(f"the model returned {type(output).__name__} without a tensor in it")

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        return self.mode.from_tensor(tensor.detach(), static_shapes=True)


def refusal(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """The error that the model itself raises for these inputs; the real model runs only to confirm a fake error."""
    if Trial(model).run(args, kwargs) is None:
        return None
    try:
        copied = copy.deepcopy(model)
        for module in copied.modules():
            module.training = False
        real_args, real_kwargs = copy.deepcopy((tuple(args), dict(kwargs)))
    except Exception:
        return None  # cannot be copied: the capture says so, with more to say about it
    try:
        with _quiet(), torch.no_grad():
            copied(*real_args, **real_kwargs)
    except Exception as error:
        return error
    return None


def _tensors(output: Any) -> list[Any]:
    """Leaves of an output, also of an object that pytree does not know (a dataclass, a cache)."""
    leaves = []
    for leaf in pytree.tree_leaves(output):
        leaves += (
            list(vars(leaf).values()) if hasattr(leaf, "__dict__") and not isinstance(leaf, torch.Tensor) else [leaf]
        )
    return leaves


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Fake tensors log a traceback for every failed op; failing is the ordinary case here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
