"""Hand-written gradients in the eager model run low: what raises when it is cast whole, what is no longer finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Table(torch.autograd.Function):
    """Its gradient is made in the default format."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        total = torch.zeros(w.shape)
        total.addmm_(x.t(), gradient)
        return gradient @ w.t(), total


class Tanh(torch.autograd.Function):
    """4e / (1 + e)² with e = exp(2x) is right where e² is finite: in fp16 for x < 2.77, in fp32 for x < 22."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        e = torch.exp(2 * ctx.saved_tensors[0])
        return gradient * (4 * e / (1 + e) ** 2)


class Normed(torch.autograd.Function):
    """Its gradient is divided by its largest entry, and by 1e-12 where that is zero: by zero in fp16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        size = gradient.abs().amax(dim=-1, keepdim=True) + 1e-12
        return gradient / size


class Applies(nn.Module):
    def __init__(self, applied: Any, *widths: int) -> None:
        super().__init__()
        self.applied, self.fc = applied, nn.Linear(8, 8)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(8, width) * 0.3) for width in widths])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.applied.apply(self.fc(x), *self.weights)
        return y


@pytest.mark.parametrize(
    ("policy", "applied", "size", "weight", "severity", "lines"),
    [
        ("bf16-training", Table, 1.0, 1.0, "error", ["total.addmm_(x.t(), gradient)"]),
        ("fp16-training", Tanh, 8.0, 1.0, "error", ["e = torch.exp(", "return gradient * (4 * e /"]),
        ("fp16-training", Normed, 1.0, 1e-9, "warning", ["size = gradient.abs()", "return gradient / size"]),
    ],
)
def test_a_backward_that_a_cast_of_the_model_breaks(
    policy: str, applied: Any, size: float, weight: float, severity: str, lines: list[str]
) -> None:
    torch.manual_seed(0)
    net = Applies(applied, *([8] if applied is Table else []))
    report = pa.audit(
        net, (X * size,), policy=policy, device="cpu-amx", loss=lambda output: weight * output.float().sum()
    )
    (found,) = [each for each in report.findings if each.rule == "PA309" and "cast to" in each.message]
    assert found.severity == severity and found.source is not None
    assert found.source.text.startswith(lines[0])
    assert all(line in found.message for line in lines)


@pytest.mark.parametrize(
    ("policy", "applied", "size"),
    [("bf16-training", Tanh, 8.0), ("fp16-training", Tanh, 0.5), ("fp16-training", Normed, 1.0), ("fp32", Table, 1.0)],
)
def test_what_a_cast_of_the_model_leaves_whole_is_quiet(policy: str, applied: Any, size: float) -> None:
    torch.manual_seed(0)
    net = Applies(applied, *([8] if applied is Table else []))
    report = pa.audit(net, (X * size,), policy=policy, device="cpu-amx")
    assert not [each for each in report.findings if each.rule == "PA309" and "cast to" in each.message]


def test_what_the_cpu_lacks_a_kernel_for_is_not_the_functions_fault() -> None:
    class Lacking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            if gradient.dtype != torch.float32:
                raise RuntimeError("\"special\" not implemented for 'BFloat16'")
            return gradient

    report = pa.audit(Applies(Lacking), (X,), policy="bf16-training", device="cpu-amx")
    assert not [each for each in report.findings if each.rule == "PA309"]


def test_a_class_is_told_once_with_all_its_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            first: Tensor = Tanh.apply(self.fc(x))
            return first + Tanh.apply(self.fc(x) * 2)

    torch.manual_seed(0)
    net, line = Twice(), Twice.forward.__code__.co_firstlineno
    report = pa.audit(net, (X * 8,), policy="fp16-training", device="cpu-amx", loss=lambda output: output.float().sum())
    (found,) = [each for each in report.findings if each.rule == "PA309"]
    assert f"Tanh, applied at lines {line + 1}, {line + 2}: " in found.message and found.resolved
