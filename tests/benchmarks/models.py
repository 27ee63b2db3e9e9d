"""The four models that the benchmarks run, written with torch alone, sizes as arguments.

ResNet-50 is the example's own. The other three have the shapes of ViT-B/16, BERT-base and a small Llama, and are
written as such models are written today: fused or separate projections, scaled_dot_product_attention, masks from
`torch.finfo(x.dtype).min`, rotary angles made in fp32 and handed over in the stream's format. Weights are random;
zero biases, norm affines and statistics are filled in (`tests.models.randomise`), and what is added to a residual
stream is scaled by its depth, so that the stream keeps its size as it does in a trained model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models import load_example, randomise

Built = tuple[nn.Module, tuple[Any, ...]]


def resnet50(seed: int = 0, *, batch: int = 4, size: int = 224, shallow: bool = False) -> Built:
    """In channels_last, inputs included; every column of a benchmark runs it so. Shallow: a block a stage, or two."""
    example = load_example("03_resnet.py")
    depths = (1, 2, 1, 1) if shallow else (3, 4, 6, 3)
    module = example.build_model(depths, seed=seed).to(memory_format=torch.channels_last)
    (images,) = example.example_inputs(batch, size, seed)
    return module, (images.to(memory_format=torch.channels_last),)


def vit_b(
    seed: int = 0, *, batch: int = 2, size: int = 224, width: int = 768, depth: int = 12, heads: int = 12
) -> Built:
    torch.manual_seed(seed)
    module = settle(VisionTransformer(size, 16, width=width, depth=depth, heads=heads, classes=1000), depth, seed)
    return module, (torch.randn(batch, 3, size, size),)


def bert(
    seed: int = 0, *, batch: int = 2, length: int = 128, width: int = 768, depth: int = 12, heads: int = 12
) -> Built:
    torch.manual_seed(seed)
    module = settle(Bert(30_522, length, width, depth, heads), depth, seed)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, length - length // 4 :] = 0
    return module, (torch.randint(0, 30_522, (batch, length)), mask)


def llama(
    seed: int = 0,
    *,
    batch: int = 2,
    length: int = 128,
    width: int = 1024,
    depth: int = 8,
    heads: int = 16,
    groups: int = 4,
) -> Built:
    torch.manual_seed(seed)
    module = settle(Llama(8_192, width, depth, heads, groups), depth, seed)
    return module, (torch.randint(0, 8_192, (batch, length)),)


MODELS: dict[str, Callable[..., Built]] = {"resnet50": resnet50, "vit-b": vit_b, "bert": bert, "llama": llama}

# Sizes at which a benchmark's code can be tested in seconds.
SMALL: dict[str, dict[str, int]] = {
    "resnet50": {"batch": 1, "size": 64, "shallow": True},
    "vit-b": {"batch": 1, "size": 64, "width": 64, "depth": 2, "heads": 4},
    "bert": {"batch": 2, "length": 16, "width": 64, "depth": 2, "heads": 4},
    "llama": {"batch": 1, "length": 16, "width": 64, "depth": 2, "heads": 4, "groups": 2},
}


def settle(module: nn.Module, depth: int, seed: int) -> nn.Module:
    """Weights of variance 1 / inputs; those that write to a residual stream smaller by sqrt(2 x depth)."""
    for name, child in module.named_modules():
        if isinstance(child, nn.Linear):
            scale = (2 * depth) ** -0.5 if name.endswith(("attention.out", "feed_forward.down")) else 1.0
            nn.init.normal_(child.weight, std=scale * child.in_features**-0.5)
    return randomise(module, seed).eval()


class Attention(nn.Module):
    """Multi-head attention; with fewer key heads than heads, grouped-query attention."""

    def __init__(self, width: int, heads: int, groups: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.channels = heads, groups, width // heads
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(width, groups * self.channels, bias)
        self.value = nn.Linear(width, groups * self.channels, bias)
        self.out = nn.Linear(width, width, bias)

    def forward(
        self, stream: Tensor, *, mask: Tensor | None = None, angles: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        batch, length, width = stream.shape
        query = self.query(stream).view(batch, length, self.heads, self.channels).transpose(1, 2)
        key = self.key(stream).view(batch, length, self.groups, self.channels).transpose(1, 2)
        value = self.value(stream).view(batch, length, self.groups, self.channels).transpose(1, 2)
        if angles is not None:
            query, key = rotate(query, *angles), rotate(key, *angles)
        if self.groups != self.heads:
            key, value = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=angles is not None)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, stream: Tensor) -> Tensor:
        projected: Tensor = self.down(F.gelu(self.up(stream)))
        return projected


class PreNormBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads, heads, bias=True)
        self.feed_forward = FeedForward(width, 4 * width)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream))
        mended: Tensor = stream + self.feed_forward(self.feed_forward_norm(stream))
        return mended


class VisionTransformer(nn.Module):
    def __init__(self, size: int, patch: int, *, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.5)
        self.blocks = nn.Sequential(*(PreNormBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        stream = torch.cat((self.first.expand(len(images), -1, -1), patches), dim=1) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(stream))[:, 0])
        return scores


class PostNormBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, heads, bias=True)
        self.feed_forward = FeedForward(width, 4 * width)
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, stream: Tensor, mask: Tensor) -> Tensor:
        stream = self.attention_norm(stream + self.attention(stream, mask=mask))
        normed: Tensor = self.feed_forward_norm(stream + self.feed_forward(stream))
        return normed


class Bert(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(PostNormBlock(width, heads) for _ in range(depth))
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        stream = self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))
        mask = (1.0 - keep[:, None, None, :].to(stream.dtype)) * torch.finfo(stream.dtype).min
        for block in self.blocks:
            stream = block(stream, mask)
        return stream, torch.tanh(self.pooler(stream[:, 0]))


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        projected: Tensor = self.down(F.silu(self.gate(stream)) * self.up(stream))
        return projected


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, groups, bias=False)
        self.feed_forward = SwiGLU(width, (8 * width // 3 + 31) // 32 * 32)

    def forward(self, stream: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream), angles=angles)
        mended: Tensor = stream + self.feed_forward(self.feed_forward_norm(stream))
        return mended


class Llama(nn.Module):
    frequencies: Tensor

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, groups: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocabulary, bias=False)
        exponents = torch.arange(0, width // heads, 2, dtype=torch.float32) / (width // heads)
        self.register_buffer("frequencies", 10_000.0**-exponents, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        stream = self.words(ids)
        positions = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
        angles = torch.outer(positions, self.frequencies.float()).repeat(1, 2)
        turns = angles.cos().to(stream.dtype), angles.sin().to(stream.dtype)
        for block in self.blocks:
            stream = block(stream, turns)
        logits: Tensor = self.head(self.norm(stream))
        return logits
