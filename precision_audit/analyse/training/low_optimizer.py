"""The user's optimizer over parameters in a low format, given the gradients of the steps.

Takes the factory, the module that is trained and a format; after each step tells how many elements of the parameters
are not finite. It is the optimizer's own arithmetic that is asked: what it divides by, what it keeps, whatever it is
called. Gradients are those of the captured format, rounded, so that nothing but the update is to blame. Holds a copy of
the parameters in the low format and the state that the optimizer makes for them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from precision_audit.analyse.training import optimizers
from precision_audit.formats import dtype_of


class LowOptimizer:
    """One optimizer over low parameters. An optimizer that cannot be made or does not step there says nothing."""

    def __init__(self, factory: optimizers.Factory, module: nn.Module, format: str) -> None:
        self.spoiled, self.step_of = 0.0, -1
        self._low, self._module = dtype_of(format), copy.deepcopy(module).to(dtype_of(format))
        try:
            self._optimizer: torch.optim.Optimizer | None = optimizers.made(factory, self._module)[0]
        except Exception:
            self._optimizer = None

    def step(self, gradients: Mapping[str, Tensor], step: int) -> None:
        """One update; gradients by parameter, in the captured format."""
        if self._optimizer is None:
            return
        parameters = dict(self._module.named_parameters())
        for name, gradient in gradients.items():
            parameters[name].grad = gradient.detach().to(self._low)
        try:
            self._optimizer.step()
        except Exception:  # no kernel for the format: the optimizer would not get as far
            self._optimizer = None
            return
        counts = [(int((~torch.isfinite(p.detach())).sum()), p.numel()) for p in parameters.values()]
        lost, seen = sum(count for count, _ in counts), sum(count for _, count in counts)
        self.spoiled = lost / seen if seen else 0.0
        if lost and self.step_of < 0:
            self.step_of = step
