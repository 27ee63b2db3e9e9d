"""The stand-in for TransformerEngine's modules, against the arithmetic written out here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_audit.backends.transformer_engine.emulated import Emulated
from precision_audit.records import Swap


def _fp8(value: Tensor, dtype: torch.dtype) -> Tensor:
    """One scale for the tensor: the largest finite value over its largest magnitude."""
    scale = torch.finfo(dtype).max / value.abs().max()
    return (value * scale).to(dtype).to(torch.float32) / scale


def _swap(kind: str = "te.Linear", **options: object) -> Swap:
    covers = () if kind == "te.Linear" else ("norm/layer_norm#0",)
    given = tuple(options.items())
    sizes = (64, 48, 32)
    return Swap("fc/linear#0", "fc", "transformer_engine", "Float8CurrentScaling", *sizes, kind=kind, covers=covers,
                options=given)  # fmt: skip


def _close(made: Tensor | None, expected: Tensor) -> None:
    assert made is not None
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_all_three_products_are_quantised() -> None:
    torch.manual_seed(0)
    linear, x, gradient = nn.Linear(64, 48), torch.randn(2, 16, 64, requires_grad=True), torch.randn(2, 16, 48)
    made = Emulated(dict(linear.named_parameters()), _swap())(x)
    made.backward(gradient)
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    qx, qw, qg = _fp8(x.detach(), e4m3), _fp8(linear.weight.detach(), e4m3), _fp8(gradient, e5m2)
    _close(made.detach(), qx @ qw.T + linear.bias.detach())
    _close(x.grad, qg @ qw)
    _close(linear.weight.grad, qg.flatten(0, 1).T @ qx.flatten(0, 1))
    _close(linear.bias.grad, gradient.sum((0, 1)))


@pytest.mark.parametrize("zero", ["input", "weight", "gradient"])
@pytest.mark.parametrize("recipe", ["Float8CurrentScaling", "MXFP8BlockScaling", "NVFP4BlockScaling"])
def test_zeros_stay_zeros_in_all_three_products(recipe: str, zero: str) -> None:
    """A layer that begins at zero, and the gradients behind it: the library's scales of zeros are finite."""
    torch.manual_seed(0)
    linear, x, gradient = nn.Linear(64, 64, bias=False), torch.randn(32, 64), torch.randn(32, 64)
    with torch.no_grad():
        {"input": x, "weight": linear.weight, "gradient": gradient}[zero].zero_()
    swap = replace(_swap(), recipe=recipe)
    made = Emulated(dict(linear.named_parameters()), swap)(x.requires_grad_())
    made.backward(gradient)
    assert linear.weight.grad is not None and x.grad is not None
    assert bool(made.any()) == (zero == "gradient")
    assert bool(x.grad.any()) == (zero == "input")
    assert bool(linear.weight.grad.any()) == (zero == "weight")
    assert all(torch.isfinite(each).all() for each in (made, x.grad, linear.weight.grad))


def test_the_output_has_the_format_of_the_input_and_gradients_that_of_the_parameters() -> None:
    linear, x = nn.Linear(64, 48), torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    made = Emulated(dict(linear.named_parameters()), _swap())(x)
    made.sum().backward()
    assert (made.dtype, x.grad.dtype, linear.weight.grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)  # type: ignore[union-attr]


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
def test_the_norm_inside_is_torchs(normalization: str) -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(64, eps=1e-3) if normalization == "LayerNorm" else nn.RMSNorm(64, eps=1e-3)
    with torch.no_grad():
        for value in norm.parameters():
            value.normal_()
    linear, x = nn.Linear(64, 48), torch.randn(32, 64)
    named = {f"layer_norm_{name}": value for name, value in norm.named_parameters()}
    fused = Emulated({**named, **dict(linear.named_parameters())},
                     _swap("te.LayerNormLinear", eps=1e-3, normalization=normalization))  # fmt: skip
    alone = Emulated(dict(linear.named_parameters()), _swap())
    _close(fused(x).detach(), alone(norm(x)).detach())
    assert list(fused.parameters()) == []  # it knows the model's parameters, it does not own them


ACTIVATIONS = {
    "gelu": lambda y: F.gelu(y, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": lambda y: F.silu(y[..., :96]) * y[..., 96:],
    "geglu": lambda y: F.gelu(y[..., :96], approximate="tanh") * y[..., 96:],
    "reglu": lambda y: F.relu(y[..., :96]) * y[..., 96:],
    "glu": lambda y: torch.sigmoid(y[..., :96]) * y[..., 96:],
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_mlp_is_its_parts(activation: str) -> None:
    torch.manual_seed(0)
    width = 192 if activation.endswith("glu") else 96
    norm, first, second = nn.LayerNorm(64), nn.Linear(64, width), nn.Linear(96, 64)
    named = {f"layer_norm_{name}": value for name, value in norm.named_parameters()}
    named |= {f"fc1_{name}": value for name, value in first.named_parameters()}
    named |= {f"fc2_{name}": value for name, value in second.named_parameters()}
    options = {"activation": activation, "eps": 1e-5, "normalization": "LayerNorm"}
    x = torch.randn(32, 64)
    fused = Emulated(named, _swap("te.LayerNormMLP", **options))(x)
    parts = [Emulated(dict(each.named_parameters()), _swap()) for each in (first, second)]
    _close(fused.detach(), parts[1](ACTIVATIONS[activation](parts[0](norm(x)))).detach())
