"""Models of the kinds people build, small. Each function gives (module, args, kwargs); see `models`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def mlp() -> Built:
    module = nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10)
    )
    return module, (torch.randn(16, 32),), {}


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=2),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
        )
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(self.features(images), 1).flatten(1)
        return F.log_softmax(self.head(self.dropout(pooled)), dim=-1)


def convnet() -> Built:
    return ConvNet(), (torch.randn(4, 3, 16, 16),), {}


class TiedLanguageModel(nn.Module):
    def __init__(self, vocabulary: int = 60, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        stream = self.embedding(ids)
        return self.head(stream + F.silu(self.mix(self.norm(stream))))


def tied_language_model() -> Built:
    return TiedLanguageModel(), (torch.randint(0, 60, (2, 16)),), {}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.recurrent = kind(16, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(ids))
        return self.head(states.mean(1))


def gru_classifier() -> Built:
    return Recurrent(nn.GRU), (torch.randint(0, 50, (3, 5)),), {}


def lstm() -> Built:
    return Recurrent(nn.LSTM), (torch.randint(0, 50, (3, 5)),), {}


def transformer_encoder() -> Built:
    layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=False)
    module = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    return module, (torch.randn(2, 9, 32),), {}


class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 8)

    def forward(self, queries: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        mixed, weights = self.attention(queries, memory, memory)
        return self.head(mixed), weights


def multi_head_attention() -> Built:
    return CrossAttention(), (torch.randn(2, 5, 32), torch.randn(2, 7, 32)), {}


class DictInput(nn.Module):
    """A nested batch in, a dict out; the keyword argument scales one of the entries."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.dense = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, batch: dict[str, Any], *, gain: Tensor) -> dict[str, Any]:
        mixed = self.embedding(batch["ids"]).mean(1) + self.dense(batch["features"]["dense"]) * gain
        scores = self.head(mixed)
        return {"scores": scores, "extra": {"hidden": mixed, "best": scores.argmax(-1)}}


def dict_input() -> Built:
    batch = {"ids": torch.randint(0, 30, (6, 5)), "features": {"dense": torch.randn(6, 8)}}
    return DictInput(), (batch,), {"gain": torch.rand(6, 1) + 0.5}


@dataclass
class Prediction:
    mean: Tensor
    spread: Tensor
    note: str = "a field that is no tensor"


class DataclassOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(12, 24)
        self.mean = nn.Linear(24, 3)
        self.spread = nn.Linear(24, 3)

    def forward(self, features: Tensor) -> Prediction:
        hidden = torch.tanh(self.trunk(features))
        return Prediction(mean=self.mean(hidden), spread=F.softplus(self.spread(hidden)))


def dataclass_output() -> Built:
    return DataclassOutput(), (torch.randn(5, 12),), {}


class RopeAttention(nn.Module):
    """Grouped-query attention with rotary positions, as in current language models."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.channels = heads, groups, width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.channels, bias=False)
        self.value = nn.Linear(width, groups * self.channels, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        exponents = torch.arange(0, self.channels, 2).float() / self.channels
        self.register_buffer("frequencies", 10000.0**-exponents, persistent=False)

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat((-second, first), dim=-1) * sin

    def forward(self, stream: Tensor) -> Tensor:
        batch, length, width = stream.shape
        angles = torch.arange(length, device=stream.device)[:, None].float() * self.frequencies.float()
        cos, sin = (torch.cat((part, part), dim=-1).to(stream.dtype) for part in (angles.cos(), angles.sin()))
        query = self.query(stream).view(batch, length, self.heads, -1).transpose(1, 2)
        key = self.key(stream).view(batch, length, self.groups, -1).transpose(1, 2)
        value = self.value(stream).view(batch, length, self.groups, -1).transpose(1, 2)
        query, key = self.rotate(query, cos, sin), self.rotate(key, cos, sin)
        key, value = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def rope_attention() -> Built:
    return RopeAttention(), (torch.randn(2, 10, 32),), {}


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.bottom = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = F.silu(self.norm(self.down(images)))
        coarse = F.relu(self.bottom(F.avg_pool2d(fine, 4)))
        raised = F.interpolate(self.up(coarse), scale_factor=2, mode="bilinear", align_corners=False)
        resized = F.interpolate(raised, size=fine.shape[-2:], mode="nearest")
        return torch.sigmoid(self.out(torch.cat((fine, resized), dim=1)))


def unet() -> Built:
    return UNet(), (torch.randn(2, 3, 16, 16),), {}


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.norm(self.step(left)) * self.norm(self.step(torch.relu(self.step(right))))


def called_twice() -> Built:
    return CalledTwice(), (torch.randn(4, 16), torch.randn(4, 16)), {}


class NestedLists(nn.Module):
    """Module lists in module lists; gate and gate_proj differ by a suffix, to trip patterns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(16, 16) for _ in range(2)) for _ in range(3))
        self.heads = nn.ModuleDict({"gate": nn.Linear(16, 4), "gate_proj": nn.Linear(16, 4)})

    def forward(self, stream: Tensor) -> Tensor:
        for pair in self.layers:
            stream = stream + pair[1](F.gelu(pair[0](stream)))
        return self.heads["gate_proj"](stream) * torch.sigmoid(self.heads["gate"](stream))


def nested_lists() -> Built:
    return NestedLists(), (torch.randn(3, 16),), {}


def small_bert() -> Built:
    from transformers import BertConfig, BertModel

    sizes: dict[str, int] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "vocab_size": 99,
        "max_position_embeddings": 40,
    }
    config = BertConfig(num_hidden_layers=2, num_attention_heads=4, hidden_dropout_prob=0.0, **sizes)
    config.attention_probs_dropout_prob = 0.0
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return BertModel(config), (torch.randint(1, 99, (2, 12)),), {"attention_mask": mask}


def small_llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, int] = {
        "hidden_size": 32,
        "intermediate_size": 80,
        "vocab_size": 99,
        "max_position_embeddings": 64,
    }
    config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, use_cache=False, **sizes)
    return LlamaForCausalLM(config), (torch.randint(0, 99, (2, 12)),), {}


MODELS = {
    factory.__name__: factory
    for factory in (
        mlp,
        convnet,
        tied_language_model,
        gru_classifier,
        lstm,
        transformer_encoder,
        multi_head_attention,
        dict_input,
        dataclass_output,
        rope_attention,
        unet,
        called_twice,
        nested_lists,
        small_bert,
        small_llama,
    )
}
