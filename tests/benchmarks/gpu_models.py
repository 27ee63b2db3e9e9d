"""The models of the GPU benchmark: one block of a present-day transformer, and ResNet-50.

Both are written out here, so that the script needs torch alone. `Block` is a decoder block of width `hidden`: RMS norm,
causal attention with heads of 128, SwiGLU of 8/3 the width rounded up to a multiple of 256, residual sums. ResNet-50 is
the network of He et al. 2015 with the stride in the 3x3 convolution, as everybody trains it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, hidden: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        batch, length, hidden = stream.shape
        heads = self.qkv(stream).view(batch, length, 3, hidden // self.head, self.head)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))


class FeedForward(nn.Module):
    def __init__(self, hidden: int, multiple: int) -> None:
        super().__init__()
        inner = -(-8 * hidden // (3 * multiple)) * multiple
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(stream)) * self.up(stream))


class Block(nn.Module):
    def __init__(self, hidden: int, head: int = 128, multiple: int = 256) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-6)
        self.attention = Attention(hidden, min(head, hidden))
        self.feed_norm = nn.RMSNorm(hidden, eps=1e-6)
        self.feed = FeedForward(hidden, multiple)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream))
        return stream + self.feed(self.feed_norm(stream))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
        )
        same = channels == wide and stride == 1
        self.shortcut: nn.Module = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))
        )

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.body(features) + self.shortcut(features))


class ResNet(nn.Module):
    """Depths (3, 4, 6, 3) and width 64 are ResNet-50."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(Bottleneck(channels, width << stage, 2 if stage and not index else 1))
                channels = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


Built = tuple[Callable[[], nn.Module], tuple[Tensor, ...]]


def block(hidden: int, tokens: int, device: str) -> Built:
    """A block and [1, tokens, hidden] inputs; small widths have heads and feed-forward widths to match."""
    small = hidden < 1024
    return (
        lambda: Block(hidden, head=16 if small else 128, multiple=16 if small else 256),
        (torch.randn(1, tokens, hidden, device=device),),
    )


def resnet(small: bool, device: str) -> Built:
    """ResNet-50 on 64 images of 224 x 224; or two thin blocks on two small images."""
    if small:
        return lambda: ResNet((1, 1), 16, 16), (torch.randn(2, 3, 32, 32, device=device),)
    return ResNet, (torch.randn(64, 3, 224, 224, device=device),)
