"""The run: forward, loss, backward and update, with every gradient counted as it is made.

Takes a capture, batches, loss, optimizer and a number of steps; gives what was `Taken` down. Gradients of activations
come from hooks on the tensors that the captured graph makes; each is counted and let go. Runs on copies of parameters
and buffers, under a fixed seed. A model that fails here fails without any change of format, and that is what is said.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from precision_audit.ambient import restored_on_error
from precision_audit.analyse.batches import check_batch
from precision_audit.analyse.counting import Counts, counted
from precision_audit.analyse.forward import tensors
from precision_audit.analyse.histogram import points
from precision_audit.analyse.quantised import Products
from precision_audit.analyse.streaming import Streamed
from precision_audit.analyse.training import optimizers
from precision_audit.analyse.training.low_optimizer import LowOptimizer
from precision_audit.analyse.training.updates import FORMATS_OF_WEIGHTS, Updates
from precision_audit.capture import Captured
from precision_audit.records import InputError, Optimizer, Range, Source, Update, error_line
from precision_audit.rewrite import unchanged
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.losses import Loss, loss_of
from precision_audit.verify.runs import Batch

_SMALLEST_FP16 = 2.0**-24  # the figure that made mixed precision known: gradients below it are zero in fp16


@dataclass(frozen=True, slots=True)
class Taken:
    """What the steps showed."""

    losses: tuple[float, ...]
    weight_gradients: tuple[Range, ...]
    activation_gradients: tuple[Range, ...]
    below: tuple[float, ...]
    updates: tuple[Update, ...]
    optimizer: Optimizer | None
    notes: tuple[str, ...]

    @property
    def diverged(self) -> bool:
        """Whether a loss is not finite."""
        return not all(math.isfinite(loss) for loss in self.losses)


def taken(
    captured: Captured,
    batches: Sequence[Batch],
    loss: Loss | None,
    factory: optimizers.Factory | None,
    steps: int,
    low: str,
    products: Products | None = None,
) -> Taken | None:
    """Take the steps; None where the model has no loss. `low`: the format that the optimizer is tried in beside.
    `products` is shown gradients."""
    mode = captured.graph.mode
    module = unchanged({mode: captured})
    module.train(mode == "training")
    for index, batch in enumerate(batches):
        check_batch(module, captured.graph, batch, index)
    with torch.random.fork_rng(), torch.enable_grad(), restored_on_error():
        torch.manual_seed(0)
        run = _Steps(module, factory, low, products)
        for step in range(steps):
            if not run.take(batches[step % len(batches)], loss, step):
                return None
    return run.found()


@dataclass(slots=True)
class _Gradients:
    """Counts of gradients by value."""

    points: tuple[float, ...] = field(default_factory=points)
    seen: dict[str, Streamed] = field(default_factory=dict)

    def add(self, value: str, gradient: Tensor, step: int) -> Counts:
        counts = counted(gradient, self.points)
        self.seen.setdefault(value, Streamed()).add(counts, step)
        return counts

    def ranges(self, order: Sequence[str]) -> tuple[Range, ...]:
        return tuple(self.seen[value].range(value, "OBSERVED") for value in order if value in self.seen)


class _Steps:
    """What has been seen so far."""

    def __init__(
        self, module: Converted, factory: optimizers.Factory | None, low: str, products: Products | None
    ) -> None:
        self._module, self._products = module, products
        self._trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._optimizer: torch.optim.Optimizer | None = None
        self._source: Source | None = None
        self._low: LowOptimizer | None = None
        if factory is not None:
            self._optimizer, self._source = optimizers.made(factory, module)
            self._low = LowOptimizer(factory, module, low) if low in FORMATS_OF_WEIGHTS else None
        self._decay = _decays(self._optimizer)
        self._weights, self._activations = _Gradients(), _Gradients()
        self._updates = {name: Updates(name) for name in self._trained}
        self._states = optimizers.States()
        self._losses: list[float] = []
        self._below: list[float] = []
        self._notes: list[str] = []
        self._lost: list[str] = []  # parameters with a gradient that is not finite

    def take(self, batch: Batch, loss: Loss | None, step: int) -> bool:
        """One step; False where there is no loss."""
        for parameter in self._trained.values():
            parameter.grad = None
        with _as_given(step):
            output = self._forward(batch, step)
            total = loss_of(output, loss)
            if total is None:
                return False
            trained = list(self._trained.values())  # and nothing that the loss holds of the user's
            total.backward(inputs=trained)  # type: ignore[no-untyped-call]
        self._losses.append(float(total.detach()))
        self._gradients(step)
        if self._optimizer is not None:
            before = {name: p.detach().clone() for name, p in self._trained.items()}
            _step(self._optimizer)
            for name, parameter in self._trained.items():
                self._updates[name].add(before[name], parameter.detach())
            self._states.add(self._optimizer, step)
        if self._low is not None:
            self._low.step({name: p.grad for name, p in self._trained.items() if p.grad is not None}, step)
        return True

    def found(self) -> Taken:
        optimizer = None
        if self._optimizer is not None:
            optimizer = optimizers.described(self._optimizer, self._source, self._states.records())
            if self._low is not None:
                optimizer = replace(optimizer, spoiled=self._low.spoiled, spoiled_in=self._low.step_of)
        keys = [node.meta["op_key"] for node in self._module.graph.nodes if "op_key" in node.meta]
        place = {key: number for number, key in enumerate(keys)}
        order = sorted(self._activations.seen, key=lambda each: place.get(each, place.get(each.rpartition(":")[0], 0)))
        return Taken(
            losses=tuple(self._losses),
            weight_gradients=self._weights.ranges(list(self._trained)),
            activation_gradients=self._activations.ranges(order),
            below=tuple(self._below),
            updates=tuple(u.record(self._decay.get(id(self._trained[name]), 0.0)) for name, u in self._updates.items())
            if optimizer
            else (),
            optimizer=optimizer,
            notes=tuple(dict.fromkeys((*self._notes, *self._said_of_lost()))),
        )

    def _forward(self, batch: Batch, step: int) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, _copied, (batch[0], dict(batch[1])))
        flat = self._module.flatten(*self._module.as_read(args, kwargs))

        def hook(value: str, tensor: Tensor) -> None:
            def note(gradient: Tensor) -> None:
                self._activations.add(value, gradient, step)
                if self._products is not None:
                    self._products.gradient(value, gradient)

            tensor.register_hook(note)  # type: ignore[no-untyped-call]

        result = _Hooked(self._module, hook).run(*flat, enable_io_processing=False)
        return self._module.unflatten(result)

    def _said_of_lost(self) -> list[str]:
        names = list(dict.fromkeys(self._lost))
        if not names:
            return []
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return [f"the gradient of {names[0]}{more} is not finite in the captured format already"]

    def _gradients(self, step: int) -> None:
        nonzero = below = 0
        if not math.isfinite(self._losses[-1]):
            self._notes.append("the loss is not finite in the captured format already, so that nothing can be judged")
        for name, parameter in self._trained.items():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            counts = self._weights.add(name, gradient, step)
            if counts.nan or counts.infinite:
                self._lost.append(name)
            rows = [int(row[0]) for row in counts.table]
            nonzero += sum(rows)
            below += sum(rows[: max(math.frexp(_SMALLEST_FP16)[1] - 1 - counts.first, 0)])
        self._below.append(below / nonzero if nonzero else 0.0)


class _Hooked(fx.Interpreter):
    """One run of the graph that hands out every float value that a gradient will reach."""

    def __init__(self, module: Converted, hook: Any) -> None:
        super().__init__(module, graph=module.graph)
        self._hook = hook

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        key = n.meta.get("op_key")
        if key is None or n.op == "get_attr":
            return result
        for value, tensor in tensors(key, result).items():
            wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            if tensor.is_floating_point() and tensor.requires_grad and not tensor.is_leaf and not wrapped:
                self._hook(value, tensor)
        return result


@contextlib.contextmanager
def _as_given(step: int) -> Iterator[None]:
    """Errors of the user's own model and loss are said to be that."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        first = error_line(error, 300)
        raise InputError(
            f"training step {step} fails in the captured format already, before anything is lowered "
            f"({first}); mend the model or its loss: forward, loss and backward must run"
        ) from error


def _step(optimizer: torch.optim.Optimizer) -> None:
    try:
        optimizer.step()
    except Exception as error:
        first = error_line(error)
        raise InputError(
            f"optimizer {type(optimizer).__name__} does not step ({first}); expected one that "
            "steps on dense fp32 parameters of the CPU without a closure, such as SGD or AdamW"
        ) from error


def _decays(optimizer: torch.optim.Optimizer | None) -> dict[int, float]:
    if optimizer is None:
        return {}
    return {id(p): optimizers.decay(group, optimizer) for group in optimizer.param_groups for p in group["params"]}


def _copied(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)
