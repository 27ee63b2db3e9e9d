"""One run of one model on one batch, under conditions that two models can share.

Takes a model, a batch and the `Conditions`; gives a `Run`: every output tensor by name and, where the conditions say
training, the gradient of every parameter. Never leaves a trace: inputs are copied before they are handed over, buffers
(running statistics, counters, caches) are put back, `.grad` is not touched and the caller's random generator is not
moved. Without that the second model would see what the first one left behind.

Where there is no loss, given or the model's own, the gradient is that of a fixed projection: Σ_k (r_k · y_k) / ‖y_k‖
over the float outputs y_k, with r_k of ±1 drawn from the seed and ‖y_k‖ taken from the reference, so that each output
counts alike whatever its unit and every run descends from the same scalar.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from precision_audit.records import InputError, kind_of
from precision_audit.verify.draws import Draws
from precision_audit.verify.losses import own_loss

Batch = tuple[tuple[Any, ...], Mapping[str, Any]]
# Tried in this order on the gradients of an fp16 run, as torch.amp.GradScaler would step down from its 2^16.
LOSS_SCALES = (2.0**16, 2.0**12, 2.0**8, 2.0**4, 1.0, 2.0**-4, 2.0**-8)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all runs of a verification have in common. `names` are the outputs' names, derived where empty; `written`
    are the parameters that the model itself changes while it runs."""

    training: bool
    loss: Callable[[Any], Tensor] | None = None
    seed: int = 0
    draws: bool = False
    names: tuple[str, ...] = ()
    written: frozenset[str] = frozenset()


@dataclass(slots=True)
class Run:
    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    scale: float = 1.0
    moved: bool = False  # the model drew from the random generator


def run(
    model: Callable[..., Any],
    batch: Batch,
    conditions: Conditions,
    norms: Mapping[str, float] | None = None,
    scale: float = 1.0,
) -> Run:
    """Runs `model` once. `norms` are those of the reference; `scale` multiplies the loss and is divided out of the
    gradient again."""
    parameters = trainable(model) if conditions.training else {}
    with without_trace(model, conditions), torch.set_grad_enabled(bool(parameters)):
        args, kwargs = pytree.tree_map_only(Tensor, _copied, (batch[0], dict(batch[1])))
        before = torch.get_rng_state()
        output = model(*args, **kwargs)
        moved = not torch.equal(before, torch.get_rng_state())
        named = flatten(output, conditions.names)
        used = norms if norms is not None else norms_of(named)
        gradients: dict[str, Tensor] = {}
        if parameters:
            gradients = _gradients(scalar(output, named, used, conditions), parameters, scale)
    return Run({name: value.detach() for name, value in named.items()}, gradients, dict(used), scale, moved)


def scalar(output: Any, named: Mapping[str, Tensor], norms: Mapping[str, float], conditions: Conditions) -> Tensor:
    """What gradients descend from: the loss, the model's own, or the projection of the outputs in units of `norms`."""
    if conditions.loss is not None:
        return _loss(conditions.loss(output))
    own = own_loss(output)
    return _projection(named, norms, conditions.seed) if own is None else own.reshape(())


def norms_of(named: Mapping[str, Tensor]) -> dict[str, float]:
    """L2 of every output that a gradient can start at."""
    return {name: float(_real(value.detach()).double().norm()) for name, value in named.items() if _counts(value)}


def run_scaled(
    model: Callable[..., Any], batch: Batch, conditions: Conditions, norms: Mapping[str, float], start: float
) -> Run:
    """A run whose loss scale steps down from `start` until the gradients are finite. Powers of two: exact."""
    for scale in (scale for scale in LOSS_SCALES if scale <= start):
        result = run(model, batch, conditions, norms, scale)
        if all(bool(torch.isfinite(gradient).all()) for gradient in result.gradients.values()):
            break
    return result


def flatten(output: Any, names: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Every tensor of a nested output by name: `output`, `output[0]`, `output['logits']`, `output.logits`. Numbers
    count as tensors of one element; what is neither is left out."""
    found = dict(_leaves(output, "output"))
    if len(names) == len(found):
        return dict(zip(names, found.values(), strict=True))
    return found


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, bool | int | float | complex):
        yield name, torch.tensor(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from _leaves(getattr(value, each.name), f"{name}.{each.name}")
    else:
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if path:
                yield from _leaves(leaf, name + pytree.keystr(path))


def trainable(model: Callable[..., Any]) -> dict[str, nn.Parameter]:
    """Trainable parameters under every name they have, so that tied ones meet whatever the order of the names."""
    if not isinstance(model, nn.Module):
        return {}
    return {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}


@contextlib.contextmanager
def without_trace(model: Callable[..., Any], conditions: Conditions) -> Iterator[None]:
    """Run on copies of the buffers, with parameters that change put back, and the random state as it was. A buffer of
    the user's is never written, not even with what it holds: a graph that was built before would notice."""
    draws = Draws() if conditions.draws else contextlib.nullcontext()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(), draws, _buffers_apart(model), _parameters_kept(model, conditions.written):
        torch.manual_seed(conditions.seed)
        yield


@contextlib.contextmanager
def _buffers_apart(model: Callable[..., Any]) -> Iterator[None]:
    """While this lasts every buffer is a copy; those that share memory share that of their copies."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    before = [(module._buffers, name, value) for module in modules for name, value in module._buffers.items()]
    memo: dict[int, Any] = {}
    twins: dict[int, Tensor] = {}
    for buffers, name, value in before:
        if value is not None:
            if id(value) not in twins:
                twins[id(value)] = _twin(value, memo)
            buffers[name] = twins[id(value)]
    try:
        yield
    finally:
        for buffers, name, value in before:
            buffers[name] = value


def _twin(value: Tensor, memo: dict[int, Any]) -> Tensor:
    plain = value.layout == torch.strided and not value.is_inference() and not value.is_quantized
    return copy.deepcopy(value.detach(), memo) if plain else value.detach().clone()


@contextlib.contextmanager
def _parameters_kept(model: Callable[..., Any], written: frozenset[str]) -> Iterator[None]:
    """Parameters that a forward pass itself changes are afterwards as they were."""
    kept = [p for name, p in model.named_parameters(remove_duplicate=False) if name in written] if written else []  # type: ignore[attr-defined]
    saved = [parameter.detach().clone() for parameter in kept]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(kept, saved, strict=True):
                parameter.copy_(before)


def _copied(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)


def dense(gradient: Tensor) -> Tensor:
    """`Embedding(sparse=True)` has sparse gradients."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def _counts(value: Tensor) -> bool:
    """Whether a gradient can start at this output."""
    return value.is_floating_point() or value.is_complex()


def _real(value: Tensor) -> Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _loss(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else kind_of(value)
        raise InputError(f"loss returned {what}; expected a tensor of one element, such as the mean")
    return value


def _projection(named: Mapping[str, Tensor], norms: Mapping[str, float], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    total = torch.zeros(())
    for name, value in named.items():
        if not _counts(value):
            continue
        real = _real(value)
        signs = torch.randint(0, 2, real.shape, generator=generator).mul_(2).sub_(1)
        norm = norms.get(name, 0.0)
        divisor = norm if norm and math.isfinite(norm) else 1.0
        wide = real.float() if real.element_size() < 4 else real
        total = total.to(real.device) + (wide * signs.to(real.device)).sum() / divisor
    return total


def _gradients(total: Tensor, parameters: Mapping[str, nn.Parameter], scale: float) -> dict[str, Tensor]:
    """A parameter that the loss does not reach has gradient zero."""
    unique = {id(parameter): parameter for parameter in parameters.values()}
    if not total.requires_grad:
        return {}
    found = torch.autograd.grad(total * scale, list(unique.values()), allow_unused=True)
    by_id = {
        key: torch.zeros_like(parameter) if gradient is None else dense(gradient.detach()) / scale
        for (key, parameter), gradient in zip(unique.items(), found, strict=True)
    }
    return {name: by_id[id(parameter)] for name, parameter in parameters.items()}
