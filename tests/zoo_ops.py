"""Models around ops with a difficulty of their own: state written in place, several outputs, indices, tensors of no or
one element, complex numbers, custom ops, vmap, ties. Each function gives (module, args, kwargs); see `models`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class BuffersInPlace(nn.Module):
    """A counter, a moving average and a cache, all written in forward."""

    steps: Tensor
    average: Tensor
    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.randn(16))
        self.register_buffer("cache", torch.randn(8, 16), persistent=False)

    def forward(self, stream: Tensor) -> Tensor:
        mixed = self.mix(stream)
        self.steps.add_(1)
        self.average.mul_(0.9).add_(mixed.detach().mean(0), alpha=0.1)
        self.cache[: stream.shape[0]] = mixed.detach()
        return (mixed - self.average) @ self.cache.T / self.steps


def buffers_in_place() -> Built:
    return BuffersInPlace(), (torch.randn(4, 16),), {}


class InPlaceActivations(nn.Module):
    """add_, mul_ and a write through a view, on activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, stream: Tensor) -> Tensor:
        hidden = self.first(stream)
        hidden.add_(stream).mul_(0.5)
        scaled = torch.zeros_like(hidden)
        scaled[:, ::2] = torch.sigmoid(hidden[:, ::2])
        scaled[:, 1::2].copy_(hidden[:, 1::2])
        return self.second(F.relu_(scaled))


def in_place_activations() -> Built:
    return InPlaceActivations(), (torch.randn(4, 16),), {}


class MultiOutput(nn.Module):
    """topk, split, chunk, max, sort, unbind, var_mean: values beside indices, views beside copies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 24), nn.Linear(8, 8)

    def forward(self, stream: Tensor) -> tuple[Tensor, ...]:
        left, middle, right = self.first(stream).split([8, 8, 8], dim=-1)
        halves = self.second(left * torch.sigmoid(middle)).chunk(2, dim=-1)
        peak, place = right.max(dim=-1)
        values, indices = torch.topk(halves[0], 2, dim=-1)
        ordered, order = torch.sort(halves[1], dim=-1)
        variance, mean = torch.var_mean(right, dim=-1, keepdim=True)
        first, second = ordered[:, :2].unbind(-1)
        return values + (right[:, :2] - mean) / (variance + 1.0), indices, peak * first - second, place, order


def multi_output() -> Built:
    return MultiOutput(), (torch.randn(6, 16),), {}


class TiedTwoNames(nn.Module):
    """An autoencoder whose decoder is the encoder's weight transposed, and one bias under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(16, 8)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.second.bias = self.first.bias

    def forward(self, stream: Tensor) -> Tensor:
        code = self.second(torch.tanh(self.first(self.encode(stream))))
        return F.linear(code, self.encode.weight.T)


def tied_two_names() -> Built:
    return TiedTwoNames(), (torch.randn(4, 16),), {}


class ScatterIndexPut(nn.Module):
    """Message passing: gather rows, add them up by index, write some in place."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(16, 16), nn.Linear(32, 8)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        sent = F.relu(self.message(nodes[source]))
        summed = torch.zeros_like(nodes).index_add(0, target, sent)
        largest = torch.zeros_like(nodes).scatter_reduce(0, target[:, None].expand_as(sent), sent, "amax")
        placed = summed.clone()
        placed.index_put_((target[:2],), largest[target[:2]], accumulate=True)
        picked = torch.gather(placed, 1, placed.argsort(dim=1))
        return self.update(torch.cat((picked, largest), dim=-1))


def scatter_index_put() -> Built:
    ends = torch.randint(0, 6, (2, 14))
    return ScatterIndexPut(), (torch.randn(6, 16), ends[0], ends[1]), {}


class IntegerOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(16, 12)

    def forward(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.score(stream)
        return scores.argmax(-1), scores > 0


def integer_output() -> Built:
    return IntegerOutput(), (torch.randn(8, 16),), {}


class ZeroSize(nn.Module):
    """An empty slice goes through a layer, is joined to the rest, and is an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        nothing = self.linear(stream[:0])
        return torch.cat((nothing, self.linear(stream)), dim=0), nothing


def zero_size() -> Built:
    return ZeroSize(), (torch.randn(4, 16),), {}


class ScalarTensors(nn.Module):
    """Tensors without dimensions: a parameter, a buffer, an input and an output. They do not promote."""

    bound: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("bound", torch.tensor(4.0))

    def forward(self, stream: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.minimum(self.linear(stream) * gain / self.temperature, self.bound)
        return scores, scores.logsumexp(-1).mean()


def scalar_tensors() -> Built:
    return ScalarTensors(), (torch.randn(4, 16), torch.tensor(0.7)), {}


class ComplexFft(nn.Module):
    """A global filter: to frequencies, times a learned complex weight, and back; and a rotation by complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(9, 8, 2) * 0.3)
        self.linear = nn.Linear(8, 8)

    def forward(self, signal: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.linear(signal), dim=1) * torch.view_as_complex(self.filter)
        filtered = torch.fft.irfft(spectrum, n=signal.shape[1], dim=1)
        turned = torch.view_as_complex(filtered.contiguous().view(*filtered.shape[:-1], 4, 2)) * 1j
        return self.linear(torch.view_as_real(turned).flatten(-2)) + spectrum.abs().mean(1, keepdim=True)


def complex_fft() -> Built:
    return ComplexFft(), (torch.randn(2, 16, 8),), {}


@torch.library.custom_op("precision_audit_tests::soft_clip", mutates_args=())
def soft_clip(values: Tensor, bound: float) -> Tensor:
    return bound * torch.tanh(values / bound)


@soft_clip.register_fake
def _(values: Tensor, bound: float) -> Tensor:
    return torch.empty_like(values)


def _keep_slope(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.bound = inputs[1]


def _soft_clip_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (output,) = ctx.saved_tensors
    return gradient * (1 - (output / ctx.bound).square()), None


soft_clip.register_autograd(_soft_clip_backward, setup_context=_keep_slope)


class CustomOp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, stream: Tensor) -> Tensor:
        return self.second(soft_clip(self.first(stream), 1.5))


def custom_op() -> Built:
    return CustomOp(), (torch.randn(4, 16),), {}


class VmapInside(nn.Module):
    """One expert per row by vmap, and a mask made by vmap over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, 16, 16) * 0.25)
        self.head = nn.Linear(16, 8)

    def forward(self, stream: Tensor) -> Tensor:
        mixed = torch.vmap(lambda weight, rows: torch.tanh(rows @ weight))(self.experts, stream)
        positions = torch.arange(stream.shape[1], device=stream.device)
        seen = torch.vmap(lambda row: positions <= row)(positions)
        return self.head(torch.where(seen.unsqueeze(-1), mixed.unsqueeze(1), 0.0).sum(2))


def vmap_inside() -> Built:
    return VmapInside(), (torch.randn(4, 5, 16),), {}


MODELS = {
    factory.__name__: factory
    for factory in (
        buffers_in_place,
        in_place_activations,
        multi_output,
        tied_two_names,
        scatter_index_put,
        integer_output,
        zero_size,
        scalar_tensors,
        complex_fft,
        custom_op,
        vmap_inside,
    )
}
