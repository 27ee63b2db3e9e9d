"""Whose linear is it: asked of what capture makes of real modules, not of records written by hand."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_audit.backends.torchao_float8 import is_swapped, offer
from precision_audit.capture import capture
from precision_audit.hardware import device
from precision_audit.records import Plan, Refusal, Swap
from precision_audit.rewrite import rewrite
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.device_shapes import check_shapes

H100 = device("h100")


class Scaled(nn.Linear):
    """A subclass that carries more than a weight."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__(k, n)
        self.scale = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Low(nn.Module):
    """A linear with a low-rank adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(32, 32).requires_grad_(False)
        self.a, self.b = nn.Linear(32, 8, bias=False), nn.Linear(8, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(32, 32)
        self.scaled = Scaled(32, 32)
        self.weight_norm = nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))
        self.old_norm = nn.utils.weight_norm(nn.Linear(32, 32))
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.twice = nn.Linear(32, 32)
        self.hooked = nn.Linear(32, 32)
        self.hooked.register_forward_hook(lambda module, inputs, output: output + 1)
        self.adapter = Low()
        self.functional = nn.Parameter(torch.randn(32, 32))
        self.listed = nn.ModuleList([nn.Linear(32, 32)])
        self.second = self.plain
        self.inplace = nn.Sequential(nn.Linear(32, 32, bias=False), nn.ReLU(inplace=True))
        self.head = nn.Linear(32, 48, bias=False)
        self.table = nn.Embedding(48, 32)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.second(self.plain(self.table(tokens)))
        x = self.old_norm(self.weight_norm(self.scaled(x)))
        x = self.attention(x, x, x, need_weights=False)[0]
        x = self.hooked(self.twice(self.twice(x)))
        x = F.linear(self.adapter(x), self.functional)
        for layer in self.listed:
            x = layer(x)
        return self.head(self.inplace(x))


# module that runs the linear → start of the refusal, or the notes of a swap
EXPECTED: dict[str, str | tuple[str, ...]] = {
    "plain": ("weight tied to second.weight", "the weight is also read by second/linear#0"),
    "second": ("weight tied to plain.weight", "the weight is also read by plain/linear#0"),
    "scaled": "scaled is tests.backends.test_linear.Scaled, not exactly nn.Linear",
    "weight_norm": "its weight is computed by weight_norm.parametrizations.weight",
    "old_norm": "its weight is computed by old_norm/_weight_norm#0",
    "attention": "functional linear: MultiheadAttention reads attention.",
    "twice": ("called 2 times",),
    "hooked": ("what hooks compute stays as captured: hooked/add#0",),
    "adapter.base": ("the weight is frozen",),
    "adapter.a": "N=8 is not a multiple of 16",
    "adapter.b": "K=8 is not a multiple of 16",
    "": "functional linear: Everything reads functional itself",
    "listed.0": (),
    "inplace.0": "its output is changed in place by inplace.1/relu",
    "head": ("weight tied to table.weight", "the weight is also read by table/embedding#0"),
}


@pytest.fixture(scope="module")
def everything() -> Any:
    torch.manual_seed(0)
    model = Everything()
    return capture(model, (torch.arange(32).reshape(2, 16),), mode="training")


@pytest.mark.parametrize("module", EXPECTED)
def test_of_captured_modules(everything: Any, module: str) -> None:
    graph = everything.graph
    linears = [op for op in graph.ops if op.op == "linear" and op.module == module]
    assert linears
    for op in linears:
        found, expected = offer(op, graph, "rowwise", "training", H100), EXPECTED[module]
        if isinstance(expected, str):
            assert isinstance(found, Refusal)
            assert found.reason.startswith(expected)
        else:
            assert isinstance(found, Swap), found
            assert (found.module, found.m) == (module, 32)
            assert len(found.notes) == len(expected)
            assert all(note.startswith(start) for note, start in zip(found.notes, expected, strict=True))


def test_every_linear_is_decided(everything: Any) -> None:
    modules = {op.module for op in everything.graph.ops if op.op == "linear"}
    assert modules == set(EXPECTED)


def test_what_is_offered_is_swapped_trains_and_fits_cuda(everything: Any) -> None:
    graph = everything.graph
    offers = [offer(op, graph, "rowwise", "training", H100) for op in graph.ops if op.op == "linear"]
    swaps = tuple(each for each in offers if isinstance(each, Swap))
    formats = tuple((op.key, "fp32") for op in graph.ops if "/" in op.key)
    plan = Plan("hand", "training", "fp32", "bf16", formats, (), swaps=swaps)
    model = Everything()
    converted = rewrite({"training": everything}, {"training": plan}, signature=inspect.signature(model.forward))
    tokens = torch.arange(32).reshape(2, 16)
    assert isinstance(converted, Converted)
    named = converted.named_modules(remove_duplicate=False)  # one linear may have two names
    assert sorted(name for name, each in named if is_swapped(each)) == sorted(
        name for name, expected in EXPECTED.items() if isinstance(expected, tuple)
    )
    assert set(converted.state_dict()) == set(model.state_dict())
    converted(tokens).sum().backward()
    assert all(
        each.grad is not None and each.grad.isfinite().all() for each in converted.parameters() if each.requires_grad
    )
    assert check_shapes(converted, (tokens,)) == "pass"
    assert check_shapes(converted, (tokens[:, :10],)).startswith(("head: ", "not checked: "))
