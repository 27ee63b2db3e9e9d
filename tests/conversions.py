"""One small net and its conversions, for the tests of saving."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from precision_audit.capture import capture, private_copy
from precision_audit.records import Cast, Mode, Plan, Swap
from precision_audit.rewrite import rewrite
from precision_audit.rewrite.converted import Converted

SOURCE = '''
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """Tied table and head, a norm with statistics, a keyword input, two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 64)
        self.mix = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        x = self.norm(F.gelu(self.mix(self.table(tokens).mean(1))))
        return {"logits": self.head(x) * scale, "tokens": tokens}


def build_model() -> Net:
    torch.manual_seed(1)
    return Net()
'''
_scope: dict[str, Any] = {"__name__": "saved_net"}
exec(compile(SOURCE, "saved_net", "exec"), _scope)
Net: Callable[[], nn.Module] = _scope["Net"]

BATCH = torch.export.Dim("batch", min=2, max=256)
SHAPES = {"tokens": {0: BATCH}, "scale": None}
CASTS = (
    Cast("/mean#0", "bf16", ("mix/linear#0",)),
    Cast("mix.weight", "bf16", ("mix/linear#0",)),
    Cast("mix.bias", "bf16", ("mix/linear#0",)),
    Cast("/gelu#0", "fp32", ("norm/batch_norm#0",)),
)
LOW = (("mix/linear#0", "bf16"), ("/gelu#0", "bf16"))


def inputs(batch: int = 32) -> tuple[tuple[Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(batch)
    return (torch.randint(0, 32, (batch, 8), generator=generator),), {"scale": torch.tensor(1.5)}


def trained(seed: int = 0) -> nn.Module:
    """A net whose statistics are not those of a fresh one."""
    torch.manual_seed(seed)
    net = Net().train()
    for batch in (16, 24):
        args, kwargs = inputs(batch)
        net(*args, **kwargs)
    return net


def converted(
    mode: Mode = "inference",
    modes: tuple[Mode, ...] = ("inference",),
    casts: tuple[Cast, ...] = CASTS,
    **options: Any,
) -> tuple[Converted, Plan]:
    net = trained()
    original, (args, kwargs) = private_copy(net), inputs()
    captures = {each: capture(original, args, kwargs, mode=each, dynamic_shapes=SHAPES) for each in modes}
    plans = {each: Plan("hand", each, "fp32", "bf16", LOW, casts, **options) for each in modes}
    module = rewrite(captures, plans, signature=inspect.signature(net.forward))
    return module.train(mode == "training"), plans[mode]


def swapped(mode: Mode = "training") -> tuple[Converted, Plan]:
    swaps = (Swap("mix/linear#0", "mix", "torchao", "rowwise", 64, 64, "batch"),)
    return converted(mode, ("training", "inference"), (CASTS[0], CASTS[3]), swaps=swaps)


def run(module: nn.Module, batch: int = 32) -> Tensor:
    args, kwargs = inputs(batch)
    with torch.no_grad():
        logits: Tensor = module(*args, **kwargs)["logits"]
    return logits
