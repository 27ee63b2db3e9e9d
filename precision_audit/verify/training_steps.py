"""Does the converted model learn what the reference learns? A few real training steps of both, side by side.

Takes the reference, the converted model, the same model wholly low (*plain*), batches, a loss and an optimizer; gives
`Steps`: per step the losses, the relative error of the loss and of the worst gradient, and the same two of fp32 against
itself under another seed of dropout, which is the noise that any error has to be seen against. All start from the same
weights and draw alike, batches go round, and each keeps its own weights and buffers from step to step. Without an
optimizer the weights stay, and one step per batch is all there is to see.

What is trained are copies, two at a time; the models that are handed in are left as they are. In fp16 the loss is
scaled, and an update whose gradients are not finite is left out and counted, as torch.amp.GradScaler does. Fails only
where a loss or a parameter is not finite and the reference's is: limits on gradients are those of `verify`, on a single
step, since a difference of weights grows from step to step whatever made it.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from precision_audit.analyse.training.optimizers import Factory, made
from precision_audit.records import InputError, Policy, Step, Steps
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.draws import Draws
from precision_audit.verify.losses import own_loss
from precision_audit.verify.measures import gradient_figure, largest_rms, measure
from precision_audit.verify.runs import LOSS_SCALES, Batch, Conditions, dense, flatten, norms_of, scalar, trainable

_BACK_OFF = 0.5  # GradScaler's, after an update that was left out
_OTHER_SEED = 7919  # far from the seeds of the steps


def training_steps(
    reference: nn.Module,
    converted: nn.Module,
    plain: nn.Module | None,
    batches: Sequence[Batch],
    policy: Policy,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: Factory | None = None,
    steps: int = 3,
    seed: int = 0,
    scale: float | None = None,
) -> Steps:
    """`scale` is the loss scale to begin with in fp16; where there is none the first step finds one. Raises InputError
    for an optimizer that cannot be used; a model that raises is a note."""
    count = steps if optimizer else min(steps, len(batches))
    course = _Course(batches, loss, optimizer, count, seed)
    low = policy.low == "fp16"
    pairs = list(_together(course.trainee(reference), course.trainee(converted, low, scale), course))
    found = [_step(one, other, course) for one, other in pairs]
    if any(one.moved for one, _ in pairs):
        again = _together(course.trainee(reference), course.trainee(reference, shift=_OTHER_SEED), course)
        noisy = [_with_noise(step, *pair, course) for step, pair in zip(found, again, strict=False)]
        found = [*noisy, *found[len(noisy) :]]
    if plain is not None:
        losses = _losses(course.trainee(plain, low, scale), len(found))
        known = [replace(step, plain_loss=each) for step, each in zip(found, losses, strict=False)]
        found = [*known, *found[len(known) :]]
    lost = [f"step {number}: {what}" for number, pair in enumerate(pairs, 1) for what in _lost(*pair)]
    return Steps(
        steps=tuple(found),
        optimizer=course.name,
        objective="loss" if loss or course.own else "projection",
        passed=not lost and not course.failed,
        notes=(*lost, *course.failed),
    )


@dataclass
class _Taken:
    """One step of one model. Gradients are unscaled."""

    loss: float
    gradients: dict[str, Tensor]
    scale: float
    skipped: bool
    moved: bool  # drew random numbers
    finite: bool  # all parameters are, after the update


@dataclass
class _Course:
    """What all models go through."""

    batches: Sequence[Batch]
    loss: Callable[[Any], Tensor] | None
    optimizer: Factory | None
    count: int
    seed: int
    name: str = ""  # of the optimizer
    own: bool = False  # the model returns its loss
    norms: dict[str, float] | None = None  # of the reference's first outputs: the projection stays the same
    failed: list[str] = field(default_factory=list)

    def trainee(self, model: nn.Module, low: bool = False, scale: float | None = None, shift: int = 0) -> _Trainee:
        return _Trainee(self, model, low, scale, shift)


class _Trainee:
    """A copy of a model with an optimizer of its own. `low`: its gradients pass fp16, so its loss is scaled."""

    def __init__(self, course: _Course, model: nn.Module, low: bool, scale: float | None, shift: int) -> None:
        self._course, self._low, self._shift = course, low, shift
        self._model = copy.deepcopy(model).train()
        self._parameters = trainable(self._model)
        self._unique = list({id(each): each for each in self._parameters.values()}.values())
        self._optimizer = made(course.optimizer, self._model)[0] if course.optimizer else None
        if self._optimizer is not None:
            course.name = type(self._optimizer).__name__
        self._scale = (scale or LOSS_SCALES[0]) if low else 1.0
        self._settled = not low or scale is not None

    def step(self, number: int) -> _Taken:
        course = self._course
        args, kwargs = course.batches[number % len(course.batches)]
        if isinstance(self._model, Converted):
            args, kwargs = self._model.as_read(args, kwargs)
        args, kwargs = pytree.tree_map_only(Tensor, lambda v: v.detach().clone(), (args, dict(kwargs)))
        with torch.enable_grad(), torch.random.fork_rng(), Draws():  # type: ignore[no-untyped-call]
            torch.manual_seed(course.seed + self._shift + number)
            before = torch.get_rng_state()
            output = self._model(*args, **kwargs)
            moved = not torch.equal(before, torch.get_rng_state())
            named = flatten(output)
            if course.norms is None:
                course.norms = norms_of(named)
            self._course.own = own_loss(output) is not None
            total = scalar(output, named, course.norms, Conditions(True, course.loss, course.seed))
            value = float(total.detach())
            gradients = self._gradients(total)
        skipped = self._low and not all(bool(torch.isfinite(each).all()) for each in gradients)
        taken = self._named(gradients) if gradients else {}
        scale = self._scale
        if skipped:
            self._scale *= _BACK_OFF
        else:
            self._settled = True
            self._update(gradients)
        finite = all(bool(torch.isfinite(each).all()) for each in self._unique)
        return _Taken(value, taken, scale, skipped, moved, finite)

    def _gradients(self, total: Tensor) -> list[Tensor]:
        """Of the unique parameters; zero where the loss does not reach one. Until an update has been made the scale
        steps down to the first that leaves them finite."""
        if not total.requires_grad:
            return []
        search = not self._settled and math.isfinite(float(total.detach()))
        while True:
            found = torch.autograd.grad(total * self._scale, self._unique, allow_unused=True, retain_graph=search)
            scaled = [
                torch.zeros_like(p) if each is None else dense(each) / self._scale
                for p, each in zip(self._unique, found, strict=True)
            ]
            if not search or self._scale <= LOSS_SCALES[-1] or all(bool(torch.isfinite(each).all()) for each in scaled):
                return scaled
            self._scale = next(each for each in LOSS_SCALES if each < self._scale)

    def _named(self, gradients: list[Tensor]) -> dict[str, Tensor]:
        by_id = {id(p): each for p, each in zip(self._unique, gradients, strict=True)}
        return {name: by_id[id(p)] for name, p in self._parameters.items()}

    def _update(self, gradients: list[Tensor]) -> None:
        if self._optimizer is None or not gradients:
            return
        for parameter, gradient in zip(self._unique, gradients, strict=True):
            parameter.grad = gradient
        try:
            self._optimizer.step()
        except TypeError as error:  # LBFGS and its like
            raise InputError(
                f"optimizer {type(self._optimizer).__name__} cannot take a step by itself ({error}); "
                "expected one whose step() needs no closure, such as SGD or Adam"
            ) from error
        self._optimizer.zero_grad(set_to_none=True)


def _together(one: _Trainee, other: _Trainee, course: _Course) -> Iterator[tuple[_Taken, _Taken]]:
    """Steps of two models; ends where one raises, with a note."""
    for number in range(course.count):
        try:
            yield one.step(number), other.step(number)
        except InputError:
            raise
        except Exception as error:  # whatever a model raises: its text is the finding
            first_line = (str(error).strip().splitlines() or [""])[0]
            course.failed.append(f"step {number + 1} failed: {type(error).__name__}: {first_line}")
            return


def _losses(one: _Trainee, count: int) -> list[float]:
    """Of a model that is run alone, as far as it gets."""
    found: list[float] = []
    with contextlib.suppress(Exception):
        found.extend(one.step(number).loss for number in range(count))
    return found


def _step(one: _Taken, other: _Taken, course: _Course) -> Step:
    errors = _errors(one, other)
    gradient = max(errors, key=lambda name: errors[name], default="")
    return Step(
        loss=one.loss,
        converted_loss=other.loss,
        plain_loss=None,
        loss_error=_apart(one.loss, other.loss, course),
        gradient=gradient,
        gradient_error=errors.get(gradient, 0.0),
        gradient_errors=tuple(errors.items()),
        scale=other.scale,
        skipped=other.skipped,
    )


def _with_noise(step: Step, one: _Taken, other: _Taken, course: _Course) -> Step:
    noise = max(_errors(one, other).values(), default=0.0)
    return replace(step, loss_noise=_apart(one.loss, other.loss, course), gradient_noise=noise)


def _errors(one: _Taken, other: _Taken) -> dict[str, float]:
    """Relative error of the gradient of every parameter."""
    largest = largest_rms(one.gradients.values())
    return {
        name: gradient_figure(measure(gradient, other.gradients[name]), largest)[0]
        for name, gradient in one.gradients.items()
        if name in other.gradients
    }


def _apart(one: float, other: float, course: _Course) -> float:
    """Relative error of a loss; that of a projection is absolute, its outputs are in units of their norms."""
    if one == other:
        return 0.0
    if not math.isfinite(one) or not math.isfinite(other):
        return math.inf
    return abs(other - one) / (abs(one) if course.loss and one else 1.0)


def _lost(one: _Taken, other: _Taken) -> Iterator[str]:
    if math.isfinite(one.loss) and not math.isfinite(other.loss):
        yield f"the loss of the converted model is {other.loss}"
    if one.finite and not other.finite:
        yield "a parameter of the converted model is not finite"
