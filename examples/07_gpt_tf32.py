"""A character-level GPT and TF32: which setting switches it on, and how far off it is, beside bf16.

What it shows. Products of fp32 numbers run in TF32 on an A100 and later where a setting of the process allows it: 11 of
24 bits, in no dtype and in no graph. There are five such settings, older and newer ones, and cuDNN's is on from the
start. For each of them

    what products and convolutions run in on the device, as the settings have it
    what the audit finds in the model, which is to stay in fp32 (policy fp32)
    the error of the logits with every product in TF32, emulated by the audit on this machine
    what that changes in the loss, from a run with each linear's operands rounded by hand

and beside it the same for the model with everything in bf16. The model is a GPT of nanoGPT's size (6 layers, 6 heads,
384 wide, 10.6 M parameters), or a small one, trained for seconds on the characters of this very file. Attention itself
stays out of it: its fp32 kernel takes three TF32 products for each one and loses nothing.

Run it:

    precision-audit examples/07_gpt_tf32.py --policy fp32 --device a100
    python examples/07_gpt_tf32.py
    python examples/07_gpt_tf32.py --size small --steps 100 --device h100
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import precision_audit as pa
from precision_audit import hardware, policy
from precision_audit.analyse.flags import flags, settings


@dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    width: int
    length: int  # characters of context
    batch: int
    steps: int  # of training, by default


SIZES = {"nano": Size(6, 6, 384, 128, 2, 30), "small": Size(2, 4, 128, 64, 8, 60)}
CHARACTERS = sorted(set(Path(__file__).read_text(encoding="utf-8")))


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, stream: Tensor) -> Tensor:
        batch, length, width = stream.shape
        heads = self.qkv(stream).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.feed_forward_norm = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream))
        mended: Tensor = stream + self.down(F.gelu(self.up(self.feed_forward_norm(stream))))
        return mended


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, len(CHARACTERS), bias=False)
        self.head.weight = self.characters.weight
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        stream = self.characters(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            stream = block(stream)
        logits: Tensor = self.head(self.norm(stream))
        return logits


def build_model(size: str = "small") -> nn.Module:
    torch.manual_seed(0)
    return GPT(SIZES[size])


def example_inputs(size: str = "small") -> tuple[Tensor]:
    return (passages(SIZES[size], torch.Generator().manual_seed(0))[:, :-1],)


def passages(size: Size, generator: torch.Generator) -> Tensor:
    """[batch, length + 1] characters of this file, by their number, from random places."""
    text = torch.tensor([CHARACTERS.index(each) for each in Path(__file__).read_text(encoding="utf-8")])
    starts = torch.randint(len(text) - size.length - 1, (size.batch, 1), generator=generator)
    return text[starts + torch.arange(size.length + 1)]


def train(module: nn.Module, size: Size, steps: int) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        batch = passages(size, generator)
        optimizer.zero_grad()
        nats(module(batch[:, :-1]), batch).backward()
        optimizer.step()


def nats(logits: Tensor, batch: Tensor) -> Tensor:
    """Cross-entropy per character."""
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


# the settings ---------------------------------------------------------------------------------------------------------


def put(value: object, name: str) -> Callable[[], None]:
    """What sets a flag of torch.backends.cuda.matmul to `value`."""
    return lambda: setattr(torch.backends.cuda.matmul, name, value)


# What a process does to its products. torch has no way back from its other settings, which a policy sets instead: the
# audit reads both alike.
PROCESS: dict[str, Callable[[], None]] = {
    "nothing: as PyTorch starts": lambda: None,
    "cuda.matmul.allow_tf32 = True": put(True, "allow_tf32"),
    'set_float32_matmul_precision("high")': lambda: torch.set_float32_matmul_precision("high"),
    'set_float32_matmul_precision("medium")': lambda: torch.set_float32_matmul_precision("medium"),
    'cuda.matmul.fp32_precision = "tf32"': put("tf32", "fp32_precision"),
}
ENVIRONMENTS = {
    "policy: torch.backends.fp32_precision: tf32": (("torch.backends.fp32_precision", "tf32"),),
    "policy: cudnn.allow_tf32: false": (("torch.backends.cudnn.allow_tf32", "false"),),
}


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Whatever is set for products meanwhile is afterwards as it was."""
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    older, before = torch.get_float32_matmul_precision(), [each.fp32_precision for each in places]
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(older)  # writes the newer ones too, which come last
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value


# running --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One setting on the device: formats of products and convolutions, findings, and what they cost."""

    products: str
    convolutions: str
    findings: tuple[str, ...]
    relative_l2: float  # of the logits against fp32
    loss: float  # its change, nats per character


class ByHand(TorchFunctionMode):
    """Rounds both operands of every linear to TF32: half a last place is added, the 13 low bits are cut off."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is F.linear:
            halves = (each.view(torch.int32) + 0x1000 & ~0x1FFF for each in args[:2])
            args = (*(each.view(torch.float32) for each in halves), *args[2:])
        return func(*args, **(kwargs or {}))


def audited(name: str, module: nn.Module, args: tuple[Tensor], device: str) -> Outcome:
    """What the audit says of the model under one setting; the loss is not its business."""
    environment = ENVIRONMENTS.get(name, ())
    keeps = replace(policy.load("fp32"), environment=environment, mode="inference")
    with put_back():
        PROCESS.get(name, lambda: None)()
        report = pa.audit(module, args, policy=keeps, device=device, verify=False)
        on = settings(flags(), environment)
    found = [each for each in report.findings if each.rule.startswith("PA7")]
    errors = [dict(each.evidence.numbers).get("output", 0.0) for each in found]
    able = hardware.has_tf32(hardware.device(device))
    formats = ["tf32" if able and on[kind].tf32 else "fp32" for kind in ("matmul", "conv")]
    return Outcome(*formats, tuple(f"{each.rule} {each.severity}" for each in found), max(errors, default=0.0), 0.0)


def main(argv: Sequence[str] | None = None) -> dict[str, Outcome]:
    parser = argparse.ArgumentParser(description="What TF32 does to a GPT under every setting, beside bf16.")
    parser.add_argument("--size", choices=SIZES, default="nano", help="of the model (default nano)")
    parser.add_argument("--steps", type=int, help="batches to train on first (default 30, 60 for small)")
    parser.add_argument("--device", default="a100", help="device to audit for (default a100)")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="settings with this in their names alone")
    options = parser.parse_args(argv)
    size, module = SIZES[options.size], build_model(options.size)
    steps = size.steps if options.steps is None else options.steps
    print(f"training {steps} steps in fp32", file=sys.stderr)
    train(module, size, steps)
    module.eval()
    batch = passages(size, torch.Generator().manual_seed(2))
    with torch.no_grad():
        exact = module(batch[:, :-1])
        low = copy.deepcopy(module).bfloat16()(batch[:, :-1]).float()
        with ByHand():
            coarse = module(batch[:, :-1])
    start = nats(exact, batch).item()
    outcomes = {}
    for name in (*PROCESS, *ENVIRONMENTS):
        if not options.only or any(each in name for each in options.only):
            found = audited(name, module, (batch[:, :-1],), options.device)
            changed = nats(coarse, batch).item() - start if found.relative_l2 else 0.0
            outcomes[name] = replace(found, loss=changed)
    for name, formats, logits in (("linears rounded by hand", "tf32", coarse), ("everything bf16", "bf16", low)):
        error = ((logits - exact).norm() / exact.norm()).item()
        outcomes[name] = Outcome(formats, "-", (), error, nats(logits, batch).item() - start)
    print(f"on {options.device}; loss in fp32 {start:.4f} nats per character")
    show(outcomes)
    return outcomes


def show(outcomes: dict[str, Outcome]) -> None:
    rows = []
    for name, each in outcomes.items():
        figures = f"{each.relative_l2:.1e}", f"{each.loss:+.1e}"
        rows.append((name, each.products, each.convolutions, ", ".join(each.findings) or "-", *figures))
    headers = ["set", "products", "convolutions", "audit", "logits off by", "loss changes by"]
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left",) * 4 + ("right",) * 2))


if __name__ == "__main__":
    main()
