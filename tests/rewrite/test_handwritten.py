"""A converted module that keeps hand-written gradients: it trains as the model does, copies, compiles and saves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.rewrite.converted import Converted


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.factor * gradient, None


class Sign(torch.autograd.Function):
    """Straight through within [-1, 1]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() <= 1, gradient, torch.zeros_like(gradient))


class Quantised(torch.autograd.Function):
    """To a grid with a learnt step; asks which gradients are needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, levels: int) -> Tensor:
        ctx.save_for_backward(x, step)
        ctx.levels = levels
        return (x / step).round().clamp(-levels, levels) * step

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, step = ctx.saved_tensors
        inside = ((x / step).abs() <= ctx.levels).to(gradient.dtype)
        of_x = gradient * inside if ctx.needs_input_grad[0] else None
        of_step = (gradient * (1 - inside) * x.sign()).sum() if ctx.needs_input_grad[1] else None
        return of_x, of_step, None


class Weighted(torch.autograd.Function):
    """The identity, with its gradient multiplied."""

    @staticmethod
    def forward(x: Tensor, weight: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.weight = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.weight, None


class Parts(torch.autograd.Function):
    """Whole and fractional part, both with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x.floor()
        return whole, x - whole

    @staticmethod
    def backward(ctx: Any, whole: Tensor, fraction: Tensor) -> Tensor:
        return whole + fraction


class Product(torch.autograd.Function):
    """What autograd does too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return gradient @ w.t(), x.t() @ gradient


WAYS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "reversed": lambda net, h: Reversed.apply(h, 0.3),
    "sign": lambda net, h: Sign.apply(h),
    "quantised": lambda net, h: Quantised.apply(h, net.step, 3),
    "quantised, step fixed": lambda net, h: Quantised.apply(h, net.step.detach(), 3) + net.step,
    "weighted": lambda net, h: Weighted.apply(h, 5.0),
    "parts": lambda net, h: torch.cat(Parts.apply(h), -1).unflatten(-1, (2, 8)).mul(net.step).sum(-2),
    "twice": lambda net, h: Reversed.apply(h, 0.3) + Reversed.apply(h * 2, 2.0),
    "two classes": lambda net, h: Weighted.apply(Product.apply(Sign.apply(h), net.w), 0.5),
}  # fmt: skip
KEPT = {
    "reversed": {"Reversed"},
    "sign": {"Sign"},
    "quantised": {"Quantised"},
    "quantised, step fixed": {"Quantised"},
    "weighted": {"Weighted"},
    "parts": {"Parts"},
    "twice": {"Reversed"},
    "two classes": {"Weighted", "Sign"},
}
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.last, self.way = nn.Linear(8, 8), nn.Linear(8, 2), way
        self.w, self.step = nn.Parameter(torch.randn(8, 8) * 0.3), nn.Parameter(torch.tensor(0.25))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(WAYS[self.way](self, self.first(x)))
        return y


def built(way: str) -> Net:
    torch.manual_seed(0)
    return Net(way)


def converted(way: str, policy: str) -> Converted:
    return pa.convert(built(way), (X,), policy=policy, device="cpu-amx").module


def gradients(module: nn.Module, step: Callable[..., Tensor] | None = None) -> dict[str, Tensor]:
    module.zero_grad()
    (module if step is None else step)(X).square().sum().backward()  # type: ignore[no-untyped-call]
    return {name: each.grad.clone() for name, each in module.named_parameters() if each.grad is not None}


def apart(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest relative L2."""
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).norm() / left[name].norm()) for name in left)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("policy", "tolerance"), [("fp32", 0.0), ("bf16-training", 0.1), ("amp-cpu-bf16", 0.1)])
def test_gradients_are_the_models(way: str, policy: str, tolerance: float) -> None:
    """bf16 has 8 bits, so h is off by 2^-9 and 2 · 2^-9 / step, or 1.6 %, of the 128 values cross a step of the
    quantiser: 2 of 128 are off by a step, where a gradient that is lost altogether is off by 1."""
    module = converted(way, policy)
    assert module.functions == KEPT[way]
    expected = gradients(built(way))
    assert apart(expected, gradients(module)) <= tolerance
    assert apart(expected, gradients(module.eval())) <= tolerance
    assert apart(expected, gradients(copy.deepcopy(module))) <= tolerance


def test_a_gradient_like_autograds_is_inlined_and_lowered() -> None:
    module = converted("two classes", "bf16-training")
    (product,) = [node for node in module.graph.nodes if node.target is torch.ops.aten.matmul.default]
    assert product.meta["val"].dtype == torch.bfloat16


@pytest.mark.parametrize(("policy", "tolerance"), [("fp32", 0.0), ("bf16-training", 0.02)])
@pytest.mark.parametrize("way", ["reversed", "sign", "weighted"])
def test_twenty_steps_are_those_of_the_model(way: str, policy: str, tolerance: float) -> None:
    net, module = built(way), converted(way, policy)
    goal = torch.randn(16, 2, generator=torch.Generator().manual_seed(1))
    for model in (net, module):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(20):
            optimizer.zero_grad()
            (model(X) - goal).square().mean().backward()
            optimizer.step()
    before = dict(built(way).named_parameters())
    for name, parameter in net.named_parameters():
        moved = (parameter - before[name]).norm()
        off = (dict(module.named_parameters())[name] - parameter).norm()
        assert off.item() <= tolerance * max(moved.item(), 1.0)


@pytest.mark.parametrize("way", ["reversed", "quantised", "parts", "two classes"])
def test_it_compiles_whole(way: str) -> None:
    module = converted(way, "bf16-training")
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert apart(gradients(module), gradients(module, compiled)) < 1e-2


@pytest.mark.parametrize("way", ["reversed", "quantised", "two classes"])
def test_a_saved_program_holds_the_forward_alone(way: str, tmp_path: Path) -> None:
    result = pa.convert(built(way), (X,), policy="bf16-training", device="cpu-amx")
    file = pa.save(result.module, result.plan, tmp_path / "net.pt2", (X,))
    loaded = torch.export.load(file).module()
    assert all(
        isinstance(node.target, torch._ops.OpOverload) for node in loaded.graph.nodes if node.op == "call_function"
    )
    assert torch.equal(loaded(X), result.module.eval()(X))
