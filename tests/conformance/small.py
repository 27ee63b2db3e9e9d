"""Small real models and policies in a line or two, and what a conversion made of them.

`built` turns a `forward` function into a module of a class of its own with the given parts; `policy` writes a policy
from its rules. `Made` is a conversion with what the conformance tests ask of it. Everything is planned for an H100,
whose costs are in a table, whatever machine the tests run on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.policy import parse
from precision_audit.records import Policy

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def built(forward: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> nn.Module:
    """A module whose `forward` is the function (first argument: the module) and whose attributes are the parts."""
    module: nn.Module = type(forward.__name__.title(), (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module.eval()


def weight(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5)


def policy(*rules: str, rest: str = "follow", low: str = "bf16", mode: str = "inference", more: str = "") -> Policy:
    """A policy of these rules (`op: exp, class: keep-fp32`), in order, and a catch-all."""
    listed = [f"  - {{name: rule-{number}, {rule}}}" for number, rule in enumerate(rules)]
    head = f"name: mine\nmode: {mode}\nformats: {{high: fp32, low: {low}}}\n{more}\nrules:\n"
    return parse(head + "\n".join([*listed, f"  - {{name: rest, class: {rest}}}"]))


def mine(*rules: str, extends: str = "bf16-inference") -> Policy:
    """Rules before a shipped policy's."""
    listed = [f"  - {{name: rule-{number}, {rule}}}" for number, rule in enumerate(rules)]
    return parse(f"name: mine\nextends: {extends}\nrules:\n" + "\n".join(listed))


SHIPPED = ["bf16-inference", "fp16-inference", "bf16-training", "fp16-training"]
ALL_LOW = {"bf16": policy(rest="safe-in-bf16"), "fp16": policy(rest="safe-in-fp16", low="fp16")}


@dataclass(frozen=True)
class Made:
    """A conversion: the module and what was planned."""

    result: pa.Conversion

    @property
    def module(self) -> nn.Module:
        return self.result.module

    @property
    def casts(self) -> list[tuple[str, str, tuple[str, ...]]]:
        return [(cast.value, cast.to, cast.consumers) for cast in self.result.plan.casts]

    @property
    def folds(self) -> list[tuple[str, str, bool, int]]:
        return [(fold.value, fold.to, fold.copy, fold.bytes) for fold in self.result.plan.folds]

    @property
    def formats(self) -> dict[str, str]:
        """Format by op, inputs and state included."""
        return dict(self.result.plan.formats)

    @property
    def low(self) -> set[str]:
        """Computed ops that run low."""
        return {key for key, name in self.formats.items() if name == self.result.plan.low and "/" in key}

    @property
    def said(self) -> list[tuple[str, str]]:
        """Code and message of every finding."""
        return [(finding.rule, finding.message) for finding in self.result.report.findings]

    @property
    def new_nodes(self) -> int:
        """Casts in the FX graph that the model did not have."""
        return sum("cast" in node.meta and bool(node.args) for node in self.result.graph.nodes)


def made(model: nn.Module, args: Sequence[Any], under: str | Policy = "bf16-inference", **options: Any) -> Made:
    options = {"device": "h100", "verify": False, **options}
    return Made(pa.convert(model, tuple(args), policy=under, **options))


def leaves(output: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(output)


def dtypes(output: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in leaves(output)]


def same(left: Any, right: Any) -> bool:
    """Structure, formats, shapes and every bit."""
    one, other = torch.utils._pytree.tree_flatten(left), torch.utils._pytree.tree_flatten(right)
    return one[1] == other[1] and all(
        (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(one[0], other[0], strict=True)
    )


def close(left: Any, right: Any, limit: float = 3e-2) -> bool:
    """Structure, formats and shapes alike; relative L2 of floats within `limit`, everything else equal."""
    one, other = torch.utils._pytree.tree_flatten(left), torch.utils._pytree.tree_flatten(right)
    return one[1] == other[1] and all(_near(a, b, limit) for a, b in zip(one[0], other[0], strict=True))


def _near(a: Any, b: Any, limit: float) -> bool:
    if not isinstance(a, Tensor):
        return bool(a == b)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    return bool((a.double() - b.double()).norm() <= limit * b.double().norm())
