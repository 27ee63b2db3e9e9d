"""Models in which the user has chosen formats: autocast regions, casts, masks and positions made with a format, and
models that are not fp32. Each function gives (module, args, kwargs); see `models`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class RegionOn(nn.Module):
    """A bf16 region between fp32 layers. The region's result is widened by its reader, not by a cast."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inside, self.after = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, stream: Tensor) -> Tensor:
        stream = torch.tanh(self.before(stream))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = F.softmax(self.inside(stream), dim=-1)
        return self.after(mixed.float() + stream)


def region_on() -> Built:
    return RegionOn(), (torch.randn(4, 16),), {}


class RegionOff(nn.Module):
    """An fp32 island: the user's word that nothing in it may be lowered."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.island, self.after = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, stream: Tensor) -> Tensor:
        stream = self.before(stream)
        with torch.autocast("cpu", enabled=False):
            mixed = torch.exp(0.1 * self.island(stream.float()))
        return self.after(mixed)


def region_off() -> Built:
    return RegionOff(), (torch.randn(4, 16),), {}


class RegionsNested(nn.Module):
    """fp16 and bf16 regions, and a switched-off one within."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, stream: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lowered = self.first(stream)
            with torch.autocast("cpu", enabled=False):
                exact = self.second(lowered.float()).square().mean(-1, keepdim=True)
            lowered = self.third(lowered)
        with torch.autocast("cpu", dtype=torch.float16):
            halved = self.fourth(stream)
        return lowered.float() * exact + halved.float()


def regions_nested() -> Built:
    return RegionsNested(), (torch.randn(4, 16),), {}


class ExplicitFloat(nn.Module):
    """Three ways to ask for fp32: .float(), .to(torch.float32), dtype=; and RMS norm as language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, stream: Tensor) -> Tensor:
        given = stream.dtype
        wide = self.first(stream).float()
        normed = self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(given)
        shares = F.softmax(self.second(normed), dim=-1, dtype=torch.float32)
        return self.third(shares.to(given)).to(torch.float32).cumsum(-1)


def explicit_float() -> Built:
    return ExplicitFloat(), (torch.randn(4, 16),), {}


class Echoes(nn.Module):
    """Outputs that tempt a cast remover: a cast that is also an output, chained casts, one output twice, an input
    given back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, stream: Tensor) -> tuple[Tensor, ...]:
        scores = self.linear(stream)
        halved = scores.half()
        return scores, halved, halved.float().to(torch.bfloat16).float(), scores, stream


def echoes() -> Built:
    return Echoes(), (torch.randn(4, 16),), {}


class NoGradRegion(nn.Module):
    """A target made without gradient by the same layers, as in self-distillation."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, stream: Tensor, other: Tensor) -> Tensor:
        with torch.no_grad():
            target = F.normalize(self.trunk(other), dim=-1)
        return F.normalize(self.head(torch.relu(self.trunk(stream))), dim=-1) - target


def no_grad_region() -> Built:
    return NoGradRegion(), (torch.randn(4, 16), torch.randn(4, 16)), {}


class FinfoMask(nn.Module):
    """Both usual masks: filled with, and added as, the lowest value of the tensor's own format."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, stream: Tensor, keep: Tensor) -> Tensor:
        scores = self.query(stream) @ self.key(stream).transpose(-1, -2) * 0.25
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        added = (1.0 - keep[:, None, :].to(stream.dtype)) * torch.finfo(stream.dtype).min
        shares = F.softmax(
            torch.maximum(scores + added, torch.full_like(scores, torch.finfo(stream.dtype).min)), dim=-1
        )
        return shares @ self.value(stream)


def finfo_mask() -> Built:
    keep = torch.ones(2, 6)
    keep[1, 4:] = 0
    return FinfoMask(), (torch.randn(2, 6, 16), keep), {}


class ArangePositions(nn.Module):
    """Positions beyond 256, which bf16 cannot tell apart, through sine and cosine and into the stream's format."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, stream: Tensor) -> Tensor:
        positions = torch.arange(stream.shape[1], device=stream.device, dtype=torch.float32)
        rates = torch.exp(torch.arange(8, device=stream.device, dtype=torch.float32) * -0.7)
        angles = positions[:, None] * rates
        waves = torch.cat((angles.sin(), angles.cos()), dim=-1).to(stream.dtype)
        return self.mix(stream + waves) + torch.zeros(16, dtype=stream.dtype, device=stream.device)


def arange_positions() -> Built:
    return ArangePositions(), (torch.randn(2, 300, 16),), {}


def trunk() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8))


def fp16_model() -> Built:
    return trunk().half(), (torch.randn(4, 16).half(),), {}


def bf16_model() -> Built:
    return trunk().bfloat16(), (torch.randn(4, 16).bfloat16(),), {}


def float64_model() -> Built:
    return trunk().double(), (torch.randn(4, 16, dtype=torch.float64),), {}


class MixedHalf(nn.Module):
    """fp16 layers, an fp32 norm and an fp32 head, with the casts that the user needed to make it run."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32).half()
        self.norm = nn.LayerNorm(32)
        self.second = nn.Linear(32, 16).half()
        self.head = nn.Linear(16, 4)

    def forward(self, stream: Tensor) -> Tensor:
        hidden = F.relu(self.first(stream.half()))
        normed = self.norm(hidden.float())
        return self.head(self.second(normed.half()).float()) + stream[:, :4]


def mixed_fp16_fp32() -> Built:
    return MixedHalf(), (torch.randn(4, 16),), {}


MODELS = {
    factory.__name__: factory
    for factory in (
        region_on,
        region_off,
        regions_nested,
        explicit_float,
        echoes,
        no_grad_region,
        finfo_mask,
        arange_positions,
        fp16_model,
        bf16_model,
        float64_model,
        mixed_fp16_fp32,
    )
}
