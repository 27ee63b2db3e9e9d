"""A net whose exported graph holds Float8Linear at the original paths, put there by hand."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from precision_audit.backends.torchao_float8 import build
from precision_audit.records import Swap


def swap_for(recipe: str, path: str = "fc") -> Swap:
    return Swap(f"{path}/linear#0", path, "torchao", recipe, 64, 48, 32)


class Small(nn.Module):
    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.fc = nn.Linear(k, n)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(x))


class Net(nn.Module):
    """A tied table, a linear that is called twice, one without bias, one that stays: a classifier of 10."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.mix = nn.Linear(64, 64)
        self.table = nn.Linear(64, 32, bias=False)
        self.table.weight = self.embedding.weight
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).mean(1)
        x = F.gelu(self.mix(F.gelu(self.mix(x))))
        return self.head(self.table(x) + torch.arange(32, device=x.device) * 1e-3)


SWAPPED = ("mix", "table")


def swapped_net(recipe: str, batch: int = 32, paths: tuple[str, ...] = SWAPPED) -> tuple[Net, fx.GraphModule, Tensor]:
    """The net, and its exported graph with Float8Linear at the original paths over clones of the parameters."""
    torch.manual_seed(0)
    net = Net()
    tokens = torch.randint(0, 32, (batch, 8))
    module = copy.deepcopy(torch.export.export(copy.deepcopy(net), (tokens,), strict=False).module(check_guards=False))
    for path in paths:
        holder = module.get_submodule(path)
        plain = nn.Linear(*reversed(holder.weight.shape), bias=hasattr(holder, "bias"))
        plain.weight = holder.weight
        if hasattr(holder, "bias"):
            plain.bias = holder.bias
        module.set_submodule(path, build(plain, swap_for(recipe, path)))
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.linear.default:
            path = list(node.meta["nn_module_stack"].values())[-1][0]
            if path in paths:
                with module.graph.inserting_before(node):
                    node.replace_all_uses_with(module.graph.call_module(path, (node.args[0],)))
                module.graph.erase_node(node)
    module.recompile()
    return net, module, tokens
