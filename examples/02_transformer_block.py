"""A small language model of the kind in use today, trained on bytes and then lowered to bf16 in four ways.

What it shows. Tied embedding and head, RMSNorm, rotary positions, causal attention, SwiGLU: 0.4 M parameters, trained
for seconds on the text of this very file, so that its outputs mean something. Then the same weights run

    fp32                       everything as written
    everything bf16            model.bfloat16(), the blunt way
    autocast bf16              torch.autocast
    bf16-inference             converted: casts placed where they are cheapest, weights stored in bf16
    bf16-inference-stream-high the same with the residual stream and the norms kept in fp32

and each is compared with fp64: error of the logits, share of next bytes that change, loss in bits per byte, and the
number of casts that one forward executes. The weight shared by the embedding and the head stays shared.

Run it:

    precision-audit examples/02_transformer_block.py
    python examples/02_transformer_block.py
    python examples/02_transformer_block.py --steps 20 --only bf16 autocast
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import precision_audit as pa

VOCABULARY = 256  # bytes
WIDTH, HEADS, DEPTH, HIDDEN = 128, 4, 2, 352  # HIDDEN: 8/3 of the width, rounded up to a multiple of 16 for fp8
BATCH, LENGTH = 8, 64
THETA = 10_000.0  # base of the rotary wavelengths


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + half) of a head's channels by its position's angle; `heads` is [B, heads, T, channels]."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Rotary(nn.Module):
    """cos and sin of position x frequency, [T, channels / 2]. The angles are made in fp32: in bf16 the positions beyond
    256 are no longer told apart."""

    frequencies: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        exponents = torch.arange(0, channels, 2, dtype=torch.float32) / channels
        self.register_buffer("frequencies", THETA**-exponents, persistent=False)

    def forward(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(stream.shape[1], device=stream.device, dtype=torch.float32)
        angles = torch.outer(positions, self.frequencies.float())
        return angles.cos().to(stream.dtype), angles.sin().to(stream.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, stream: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = stream.shape
        heads = self.qkv(stream).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        projected: Tensor = self.down(F.silu(self.gate(stream)) * self.up(stream))
        return projected


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.attention = Attention()
        self.feed_forward_norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.feed_forward = SwiGLU()

    def forward(self, stream: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream), cos, sin)
        mended: Tensor = stream + self.feed_forward(self.feed_forward_norm(stream))
        return mended


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.rotary = Rotary(WIDTH // HEADS)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)  # as a head: logits of about unit variance

    def forward(self, ids: Tensor) -> Tensor:
        stream = self.embedding(ids)
        cos, sin = self.rotary(stream)
        for block in self.blocks:
            stream = block(stream, cos, sin)
        logits: Tensor = self.head(self.norm(stream))
        return logits


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return LanguageModel()


def example_inputs() -> tuple[Tensor]:
    return (passages(torch.Generator().manual_seed(0))[:, :-1],)


def loss(output: Tensor) -> Tensor:
    """Cross-entropy against the bytes that follow those of `example_inputs`, in nats."""
    targets = passages(torch.Generator().manual_seed(0))[:, 1:]
    return F.cross_entropy(output.float().flatten(0, 1), targets.to(output.device).flatten())


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=3e-3)


def passages(generator: torch.Generator) -> Tensor:
    """[BATCH, LENGTH + 1] bytes: passages of this file, from random places."""
    text = torch.tensor(list(Path(__file__).read_bytes()))
    starts = torch.randint(len(text) - LENGTH - 1, (BATCH, 1), generator=generator)
    return text[starts + torch.arange(LENGTH + 1)]


def train(module: nn.Module, steps: int) -> None:
    optimizer = make_optimizer(module.parameters())
    generator = torch.Generator().manual_seed(1)
    module.train()
    for _ in range(steps):
        batch = passages(generator)
        optimizer.zero_grad()
        F.cross_entropy(module(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()


class CountCasts(TorchDispatchMode):
    """Counts conversions from one float format to another while it is active."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].dtype != result.dtype:
            self.count += args[0].is_floating_point() and result.is_floating_point()
        return result


@dataclass(frozen=True)
class Outcome:
    """One way to run the trained model, against fp64."""

    relative_l2: float  # of the logits
    changed: float  # share of positions whose likeliest next byte is another
    bits: float  # loss, bits per byte
    casts: int  # executed by one forward


Run = Callable[[Tensor], Tensor]


def autocast(module: nn.Module) -> Run:
    run: Run = torch.autocast("cpu", torch.bfloat16)(module.forward)
    return run


def converted(policy: str) -> Callable[[nn.Module], Run]:
    return lambda module: pa.convert(module, example_inputs(), policy=policy).module


WAYS: dict[str, tuple[str, Callable[[nn.Module], Run]]] = {
    "fp32": ("fp32", lambda module: module),
    "bf16": ("everything bf16", lambda module: module.bfloat16()),
    "autocast": ("autocast bf16", autocast),
    "converted": ("bf16-inference", converted("bf16-inference")),
    "stream-high": ("bf16-inference-stream-high", converted("bf16-inference-stream-high")),
}


def compare(run: Run, batch: Tensor, exact: Tensor) -> Outcome:
    """One forward of `run` against the logits of fp64."""
    counter = CountCasts()
    with torch.no_grad(), counter:
        logits = run(batch[:, :-1])
    error = (logits.double() - exact).norm() / exact.norm()
    changed = (logits.argmax(-1) != exact.argmax(-1)).double().mean()
    nats = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    return Outcome(error.item(), changed.item(), nats.item() / math.log(2), counter.count)


def main(argv: Sequence[str] | None = None) -> dict[str, Outcome]:
    parser = argparse.ArgumentParser(description="Lower a small trained language model to bf16 and compare.")
    parser.add_argument("--steps", type=int, default=300, help="batches to train on first (default 300)")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="compare these alone")
    options = parser.parse_args(argv)
    module = build_model()
    print(f"training {options.steps} steps in fp32", file=sys.stderr)
    train(module, options.steps)
    module.eval()
    batch = passages(torch.Generator().manual_seed(2))
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(batch[:, :-1])
    outcomes: dict[str, Outcome] = {}
    for key in options.only:
        outcomes[key] = compare(WAYS[key][1](copy.deepcopy(module)), batch, exact)
    rows = [
        [WAYS[key][0], f"{one.relative_l2:.1e}", f"{one.changed:.1%}", f"{one.bits:.3f}", one.casts]
        for key, one in outcomes.items()
    ]
    headers = ["runs as", "relative L2", "next byte changed", "bits per byte", "casts"]
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left",) + ("right",) * 4))
    return outcomes


if __name__ == "__main__":
    main()
