"""Models in which quantisation goes wrong, and others in which it does not: for the rules PA410 to PA415.

`BAD` holds (name, model, inputs, policy, rules of which one must speak, the module or op that it must name); `GOOD`
(name, model, inputs, policy). Written down from what the kind is, before the rules were run on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_TRAINING = """name: mine
extends: bf16-training
mode: training
device: h100
tolerances: {{relative_l2: 1.0e-1, gradient_relative_l2: 5.0e-1}}
rules:
  - {{name: linears, op: linear, class: fp8-eligible, backend: torchao, recipe: {recipe}}}
"""
NVFP4 = """name: mine
extends: bf16-inference
device: b200
tolerances: {relative_l2: 5.0e-1}
rules:
  - {name: linears, op: linear, class: fp8-eligible, backend: torchao_quantize, recipe: nvfp4}
"""
TENSORWISE, ROWWISE = _TRAINING.format(recipe="tensorwise"), _TRAINING.format(recipe="rowwise")


def pinned(ops: str, to: str = "fp8_e4m3fn") -> str:
    rule = f'  - {{name: stored, op: [{ops}], class: "pin:{to}"}}\n'
    return f"name: mine\nextends: bf16-inference\nrules:\n{rule}"


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.n1, self.n2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        made: Tensor = x + self.down(nn.functional.gelu(self.up(self.n2(x))))
        return made


class Language(nn.Module):
    def __init__(self, layers: int = 4, width: int = 64, words: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        made: Tensor = self.head(self.norm(x))
        return made


class Perceptron(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(width, 128), nn.Linear(128, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.c(torch.relu(self.b(torch.relu(self.a(x)))))
        return made


class HugeToken(nn.Module):
    """A sink token whose activations grow in the middle of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64)

    def forward(self, x: Tensor, sink: Tensor) -> Tensor:
        made: Tensor = self.norm(x + self.down(torch.relu(self.up(x)) * sink))
        return made


class Centred(nn.Module):
    """A channel far from zero, the same in all rows: what it contributes is taken out behind the product."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.norm, self.out = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(torch.relu(self.norm(self.lift(x))))
        return made


class Stream(nn.Module):
    """A residual stream that is kept in fp8 between blocks."""

    def __init__(self, kind: torch.dtype, gain: float) -> None:
        super().__init__()
        self.a, self.b, self.kind, self.gain = nn.Linear(32, 32), nn.Linear(32, 32), kind, gain

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.a(x) * self.gain
        kept = x.to(self.kind)
        made: Tensor = kept.to(x.dtype) + self.b(x)
        return made


class Cache(nn.Module):
    """Keys that are written into a cache in fp8, as they are."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.key = nn.Linear(32, 32)
        self.register_buffer("cache", torch.zeros(2, 16, 32, dtype=torch.float8_e4m3fn))
        with torch.no_grad():
            self.key.weight.mul_(gain)
            self.key.bias.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        self.cache[:, :8] = self.key(x)
        return x + self.cache[:, :8].to(x.dtype)


class LoudChannel(nn.Module):
    """One channel far above all others in every row, and weights that make up for it."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.lift, self.out = nn.Linear(64, 128), nn.Linear(128, 64)
        self.gain = nn.Parameter(torch.ones(128))
        with torch.no_grad():
            self.gain[17] = gain
            self.out.weight[:, 17] /= gain

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(torch.relu(self.lift(x)) * self.gain)
        return made


class LowWeights(nn.Module):
    """A weight that is cast to fp8 as it is, whenever it is read."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) * spread)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(torch.float8_e4m3fn).to(x.dtype))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.bias = nn.Embedding(16, 32), nn.LayerNorm(32), nn.Parameter(torch.randn(32))

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.norm(self.embed(tokens)) + self.bias
        return made


class Lora(nn.Module):
    def __init__(self, rank: int = 16) -> None:
        super().__init__()
        self.base, self.a, self.b = nn.Linear(64, 64), nn.Linear(64, rank, bias=False), nn.Linear(rank, 64, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.base(x) + self.b(self.a(x))
        return made


class ByHand(nn.Module):
    """int8 rows with a scale of their own; `guard` is added to the maximum."""

    def __init__(self, guard: float) -> None:
        super().__init__()
        self.guard = guard

    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(dim=-1, keepdim=True)
        if self.guard:
            largest = largest + self.guard
        made = torch.round(x * (127.0 / largest)).to(torch.int8)
        return made.to(x.dtype) * largest / 127.0


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(64, 16, bias=False)
        self.w = nn.Parameter(torch.randn(16, 64, 32) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.softmax(self.gate(x), -1).argmax(-1)
        return torch.einsum("mk,mkn->mn", x, self.w[chosen])


class Modulated(nn.Module):
    """adaLN with a strong scale over a stream that many layers only add to."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.ada, self.norm = nn.Linear(64, 128), nn.LayerNorm(64, elementwise_affine=False)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        with torch.no_grad():
            self.ada.weight.mul_(strength)
            for layer in self.layers:
                layer.weight.mul_(0.2)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        scale, shift = self.ada(c).unsqueeze(1).chunk(2, -1)
        x = self.norm(x) * (1 + scale) + shift
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * 0.1
        return x


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _heavy(*shape: int) -> Tensor:
    return normal(*shape) * normal(*shape, seed=2).exp()


def _weight_outlier() -> nn.Module:
    model = Perceptron()
    with torch.no_grad():
        model.b.weight[3, 7] = 3e4
    return model


def _feature_outlier() -> nn.Module:
    model = Perceptron()
    with torch.no_grad():
        model.b.weight[5] *= 1e5
    return model


def _sink() -> Tensor:
    sink = torch.ones(2, 16, 1)
    sink[:, 0] = 3e5
    return sink


def _shifted() -> Tensor:
    x = normal(64, 64)
    x[:, 11] = 100.0  # with 3000 bf16 is lost, too, and PA204 keeps all of it in fp32
    return x


def _padded() -> Tensor:
    x = normal(4, 32)
    x[1] = 0.0
    return x


Bad = tuple[str, Callable[[], nn.Module], tuple[Any, ...], str, tuple[str, ...], str]

BAD: tuple[Bad, ...] = (
    ("one huge weight", _weight_outlier, (normal(32, 64),), TENSORWISE, ("PA411",), "b/linear#0"),
    ("one huge feature", _feature_outlier, (normal(32, 64),), TENSORWISE, ("PA411",), "b/linear#0"),
    ("a sink token", HugeToken, (normal(2, 16, 64), _sink()), TENSORWISE, ("PA411",), "down/linear#0"),
    ("a shifted channel", Centred, (_shifted(),), ROWWISE, ("PA410", "PA411"), "lift/linear#0"),
    ("a stream in e4m3", lambda: Stream(torch.float8_e4m3fn, 1e4), (normal(16, 32),), "bf16-inference", ("PA413",), ""),
    ("a stream in e5m2", lambda: Stream(torch.float8_e5m2, 1e6), (normal(16, 32),), "bf16-inference", ("PA413",), ""),
    ("a cache in e4m3", lambda: Cache(2000.0), (normal(2, 8, 32),), "bf16-inference", ("PA413",), "/copy_#0"),
    ("keys too low for e4m3", lambda: Cache(1e-3), (normal(2, 8, 32),), "bf16-inference", ("PA413",), "/copy_#0"),
    ("weights too low for e4m3", lambda: LowWeights(2e-3), (normal(4, 32),), "bf16-inference", ("PA413",), ""),
    ("a loud channel", lambda: LoudChannel(2e6), (normal(32, 64),), ROWWISE, ("PA410", "PA411"), "out/linear#0"),
    ("a norm in fp8", Normed, (torch.arange(8),), pinned("layer_norm"), ("PA415",), "norm/layer_norm#0"),
    ("a bias in fp8", Normed, (torch.arange(8),), pinned("add"), ("PA415",), "/add#0"),
    ("a large weight pinned", _feature_outlier, (normal(32, 64),), pinned("linear"), ("PA413",), "b/linear#0"),
    ("int8 rows of zeros", lambda: ByHand(0.0), (_padded(),), "bf16-inference", ("PA412",), ""),
    ("a router", Experts, (normal(256, 64),), ROWWISE, ("PA410",), "gate/linear#0"),
)

GOOD: tuple[tuple[str, Callable[[], nn.Module], tuple[Any, ...], str], ...] = (
    ("transformer, rowwise", Language, (torch.arange(64).reshape(2, 32),), ROWWISE),
    ("transformer, tensorwise", Language, (torch.arange(64).reshape(2, 32),), TENSORWISE),
    ("perceptron, rowwise", Perceptron, (normal(32, 64),), ROWWISE),
    ("perceptron, tensorwise", Perceptron, (normal(32, 64),), TENSORWISE),
    ("heavy tails, tensorwise", Perceptron, (_heavy(64, 64),), TENSORWISE),
    ("LoRA before training", Lora, (normal(32, 64),), ROWWISE),
    ("modest modulation", lambda: Modulated(1.0), (normal(16, 8, 64), normal(16, 64, seed=3)), ROWWISE),
    ("a stream in e4m3 that fits", lambda: Stream(torch.float8_e4m3fn, 1.0), (normal(16, 32),), "bf16-inference"),
    ("a cache in e4m3 that fits", lambda: Cache(1.0), (normal(2, 8, 32),), "bf16-inference"),
    ("weights in e4m3", lambda: LowWeights(2e-2), (normal(4, 32),), "bf16-inference"),
    ("a channel that is three hundred times the others", lambda: LoudChannel(300.0), (normal(32, 64),), ROWWISE),
    ("int8 rows with a least maximum", lambda: ByHand(1e-8), (_padded(),), "bf16-inference"),
    ("a sink token, rowwise", HugeToken, (normal(2, 16, 64), _sink()), ROWWISE),
)
