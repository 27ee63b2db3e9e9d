"""Two networks small enough to be trained many times, with data that never repeat.

`convnet`: which of four noisy 8x8 patterns an image shows; convolutions, batch norm and linears. `transformer`: the
next of 16 tokens, which four times in five follows from the one before; embedding, layer norm, attention, GELU. All
sizes are multiples of 16, so that fp8 takes every linear but the convnet's head. Neither loss can reach zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, LENGTH, WIDTH, TOKENS = 16, 8, 32, 16
Batch = tuple[Tensor, Tensor]


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.hidden, self.head = nn.Linear(16 * 16, 32), nn.Linear(32, 4)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.conv2(F.relu(self.norm(self.conv1(images)))))
        scores: Tensor = self.head(F.relu(self.hidden(features.flatten(1))))
        return scores


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, ids: Tensor) -> Tensor:
        stream = self.embedding(ids) + self.positions
        batch, length, width = stream.shape
        heads = self.qkv(self.norm1(stream)).view(batch, length, 3, 2, width // 2)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        stream = stream + self.down(F.gelu(self.up(self.norm2(stream))))
        scores: Tensor = self.head(self.norm3(stream))
        return scores.flatten(0, 1)


def images(generator: torch.Generator) -> Batch:
    patterns = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(4, (BATCH,), generator=generator)
    return patterns[labels] + 4 * torch.randn(BATCH, 1, 8, 8, generator=generator), labels


def tokens(generator: torch.Generator) -> Batch:
    ids = torch.randint(TOKENS, (BATCH, LENGTH + 1), generator=generator)
    chance = torch.rand(BATCH, LENGTH + 1, generator=generator) < 0.2
    for place in range(1, LENGTH + 1):
        ids[:, place] = torch.where(chance[:, place], ids[:, place], (5 * ids[:, place - 1] + 3) % TOKENS)
    return ids[:, :-1], ids[:, 1:].flatten()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Batch]]] = {
    "convnet": (Convnet, images),
    "transformer": (Transformer, tokens),
}
