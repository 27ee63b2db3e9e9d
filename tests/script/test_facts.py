"""What the rules say torch does, asked of torch."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn


def made() -> tuple[nn.Linear, torch.optim.SGD, torch.amp.GradScaler]:
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")


def scaled(model: nn.Linear, scaler: torch.amp.GradScaler) -> None:
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()


def without_update() -> None:
    model, optimizer, scaler = made()
    for _ in range(2):
        scaled(model, scaler)
        scaler.step(optimizer)


def unscaled_twice() -> None:
    model, optimizer, scaler = made()
    scaled(model, scaler)
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def not_scaled() -> None:
    model, optimizer, scaler = made()
    model(torch.ones(1, 4)).sum().backward()
    scaler.step(optimizer)


def half_parameters() -> None:
    model, optimizer, scaler = made()
    model.half()
    scaler.scale(model(torch.ones(1, 4).half()).sum().float()).backward()
    scaler.step(optimizer)


@pytest.mark.parametrize(
    ("does", "error", "says"),
    [
        (without_update, RuntimeError, "since the last update"),
        (unscaled_twice, RuntimeError, "unscale_"),
        (not_scaled, AssertionError, "_scale is None"),
        (half_parameters, ValueError, "Attempting to unscale FP16 gradients"),
        (lambda: torch.ones(2).copy(), AttributeError, "copy"),
    ],
)
def test_what_raises(does: Callable[[], None], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        does()


def test_gradients_before_unscale_carry_the_scale() -> None:
    """Of sum(w·1 + b): the gradient of every weight is 1, times 65536."""
    model, optimizer, scaler = made()
    scaled(model, scaler)
    assert model.weight.grad is not None and model.weight.grad.unique().tolist() == [65536.0]
    scaler.unscale_(optimizer)
    assert model.weight.grad.unique().tolist() == [1.0]


def test_a_cast_keeps_the_parameters_of_the_optimizer_and_lowers_its_state() -> None:
    model = nn.Linear(4, 2)
    weight, optimizer = model.weight, torch.optim.Adam(model.parameters())
    model.half()
    model(torch.ones(1, 4).half()).sum().backward()
    optimizer.step()
    assert model.weight is weight and weight.dtype == torch.float16
    assert optimizer.state[weight]["exp_avg"].dtype == torch.float16
    assert torch.tensor(1e-8).half().item() == 0.0  # Adam's eps


@pytest.mark.parametrize(("format", "bits"), [(torch.float16, 11), (torch.bfloat16, 8)])
def test_updates_below_half_a_step_are_rounded_away(format: torch.dtype, bits: int) -> None:
    one = torch.ones((), dtype=format)
    assert one + one * 2.0**-bits == one
    assert one + one * 2.0 ** (1 - bits) > one


class Product(torch.autograd.Function):
    seen: ClassVar[list[torch.dtype]] = []

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        Product.seen.append((a @ b).dtype)
        return grad @ b.t(), a.t() @ grad


@pytest.mark.parametrize("inside", [True, False])
def test_a_backward_inside_a_region_is_cast_and_outside_mixes_formats(inside: bool) -> None:
    a = torch.randn(4, 4, requires_grad=True)
    Product.seen.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = Product.apply(a, a).float().sum()
        if inside:
            loss.backward()
    if not inside:
        with pytest.raises(RuntimeError, match="same dtype"):
            loss.backward()
    assert Product.seen == [torch.bfloat16 if inside else torch.float32]


def tied() -> tuple[nn.Linear, nn.Embedding]:
    head, embed = nn.Linear(4, 8, bias=False), nn.Embedding(8, 4)
    head.weight = embed.weight
    return head, embed


def test_which_casts_part_a_tie() -> None:
    head, embed = tied()
    for module in (head, embed):
        module.weight.data = module.weight.data.half()
    assert head.weight is embed.weight
    for module in (head, embed):
        module.weight = nn.Parameter(module.weight.float())
    assert head.weight is not embed.weight


@pytest.mark.parametrize("way", ["data", "parameter"])
def test_two_parameters_over_one_memory_part_in_a_cast(way: str) -> None:
    head, embed = nn.Linear(4, 8, bias=False), nn.Embedding(8, 4)
    if way == "data":
        head.weight.data = embed.weight.data
    else:
        head.weight = nn.Parameter(embed.weight)
    assert head.weight is not embed.weight
    assert head.weight.data_ptr() == embed.weight.data_ptr()
    nn.ModuleList([head, embed]).half()
    assert head.weight.data_ptr() != embed.weight.data_ptr()


@pytest.mark.parametrize("name", ["cuda.amp.GradScaler", "cuda.amp.autocast", "cpu.amp.autocast"])
def test_old_names_warn(name: str) -> None:
    made = torch
    for part in name.split("."):
        made = getattr(made, part)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made()
    assert any(issubclass(each.category, FutureWarning) and "torch.amp" in str(each.message) for each in said)


@pytest.mark.slow
def test_mixed_tf32_settings_raise_where_they_disagree() -> None:
    code = (
        "import torch\ntorch.backends.cudnn.allow_tf32 = True\n"
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'\nprint(torch.backends.cuda.matmul.allow_tf32)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "mix of the legacy and new APIs" in done.stderr


def test_a_cast_copies_unless_the_format_is_the_same() -> None:
    low, high = torch.ones(2, dtype=torch.float16), torch.ones(2)
    low.float().mul_(0.5)
    high.half().mul_(0.5)
    assert low.tolist() == high.tolist() == [1.0, 1.0]
    high.float().mul_(0.5)
    assert high.tolist() == [0.5, 0.5]


def test_a_scaler_that_is_kept_adapts_and_a_new_one_does_not() -> None:
    """An overflow halves the scale of the next batch, if there is a next batch of that scaler."""
    model, optimizer, scaler = made()
    scales = []
    for _ in range(3):
        scaler.scale(model(torch.full((1, 4), torch.inf)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
    assert scales == [2.0**15, 2.0**14, 2.0**13]
    fresh = torch.amp.GradScaler("cpu")
    fresh.scale(torch.ones(()))
    assert fresh.get_scale() == 2.0**16
