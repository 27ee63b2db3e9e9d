"""Placing casts: where they go, how many there are, and who shares them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.report import as_full
from tests.conformance.small import LOW, SHIPPED, built, close, made, policy, same, weight

X = torch.rand(32, 32, generator=torch.Generator().manual_seed(0)) + 0.1
FREE_IO = "keep_io_types: false"
MODES = ("inference", "training")


# chains --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 32, 512, 1024])  # at 4 B saved per element, two launches pay beyond 3.3 M elements
@pytest.mark.parametrize("under", ["follow", "bf16-inference"])
def test_exp_relu_sqrt_relu_without_a_matmul_is_unchanged(size: int, under: str) -> None:
    def chain(self: nn.Module, x: Tensor) -> Tensor:
        return x.exp().relu().sqrt().relu()

    x = torch.rand(size, size)
    found = made(built(chain), (x,), policy() if under == "follow" else under)
    assert not found.casts and not found.low and found.new_nodes == 0
    assert same(found.module(x), chain(found.module, x))


@pytest.mark.parametrize("under", ["bf16-inference", "fp16-inference"])  # they keep exp, sqrt and log
@pytest.mark.parametrize("size", [32, 256])
def test_only_relu_matmul_relu_around_the_matmul_is_low_with_two_casts_beside_the_weights(
    under: str, size: int
) -> None:
    def chain(self: Any, x: Tensor) -> Tensor:
        return (x.exp().relu().sqrt().relu() @ self.w).relu().log().relu()

    low = under[:4]
    found = made(built(chain, w=weight(size, size)), (torch.rand(size, size),), under)
    assert found.low == {"/relu#1", "/matmul#0", "/relu#2"}
    assert found.casts == [("/sqrt#0", low, ("/relu#1",)), ("/relu#2", "fp32", ("/log#0",))]
    assert found.folds == [("w", low, False, 0)] and found.new_nodes == 2


def test_in_training_the_weights_cast_is_the_third() -> None:
    def chain(self: Any, x: Tensor) -> Tensor:
        return (x.exp().relu().sqrt().relu() @ self.w).relu().log().relu()

    found = made(built(chain, w=weight(32, 32)), (X,), "bf16-training")
    assert sorted(value for value, _, _ in found.casts) == ["/relu#2", "/sqrt#0", "w"]


@pytest.mark.parametrize("shape_only", ["expand_as", "view_as", "sizes"])
@pytest.mark.parametrize("feeds", [0, 1])
def test_two_relus_sharing_a_shape_only_consumer_get_one_cast_per_tensor_and_direction(
    shape_only: str, feeds: int
) -> None:
    def relus(self: Any, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        one, two = x.relu(), y.relu()
        flags = torch.ones(1, 1, dtype=torch.bool)
        if shape_only == "expand_as":
            shaped = flags.expand_as(one) & flags.expand_as(two)
        elif shape_only == "view_as":
            shaped = torch.arange(32 * 32).view_as(one) + torch.arange(32 * 32).view_as(two)
        else:
            shaped = torch.arange(one.shape[0] + two.shape[0])
        fed = (one, two)[feeds]
        return fed @ self.w, fed @ self.v, one, two, shaped

    args = (X, X + 1)
    shapes = {"x": {0: torch.export.Dim("B")}, "y": {0: torch.export.Dim("B")}}
    model = built(relus, w=weight(32, 8), v=weight(32, 8, seed=1))
    found = made(model, args, "bf16-inference", dynamic_shapes=shapes if shape_only == "sizes" else None)
    fed = f"/relu#{feeds}"
    assert found.casts == [
        (fed, "bf16", ("/matmul#0", "/matmul#1")),
        ("/matmul#0", "fp32", ("output:0",)),
        ("/matmul#1", "fp32", ("output:1",)),
    ]
    assert found.new_nodes == 3 and close(found.module(*args), model(*args))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("low", LOW)
def test_batch_norm_between_two_convolutions_low_data_and_statistics_in_fp32(mode: str, low: str) -> None:
    def between(self: Any, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)))

    model = built(between, first=nn.Conv2d(3, 8, 3), norm=nn.BatchNorm2d(8, momentum=0.25), second=nn.Conv2d(8, 4, 3))
    images = torch.randn(4, 3, 12, 12)
    found = made(model, (images,), f"{low}-{mode}")
    assert found.low == {"first/conv2d#0", "norm/batch_norm#0", "second/conv2d#0"}
    touched = {value for value, _, _ in found.casts} | {fold[0] for fold in found.folds}
    assert not [value for value in touched if value.startswith("norm.")]
    assert {found.formats[f"norm.{name}"] for name in ("weight", "bias", "running_mean", "running_var")} == {"fp32"}
    assert [value for value, _, _ in found.casts if value.startswith(("x", "norm/"))] == ["x"]
    assert close(found.module.eval()(images), model(images))
    if mode == "training":
        found.module.train()(images)
        statistics = model.first(images).mean((0, 2, 3)), model.first(images).var((0, 2, 3))
        norm = found.module.get_submodule("norm")
        assert norm.running_mean.dtype == norm.running_var.dtype == torch.float32 and norm.num_batches_tracked == 1
        assert torch.allclose(norm.running_mean, 0.25 * statistics[0], atol=2e-3)
        assert torch.allclose(norm.running_var, 0.75 + 0.25 * statistics[1], rtol=1e-2)


# sharing -------------------------------------------------------------------------------------------------------------

ORDERS = sorted(set(itertools.permutations(("low", "low", "high"))))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("under", ["bf16-inference", "fp16-inference", "bf16-training"])
def test_a_value_used_by_two_low_and_one_high_consumer_has_one_cast_that_the_low_ones_share(
    order: tuple[str, ...], under: str
) -> None:
    def uses(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        value, weights = x.exp(), iter((self.w, self.v))
        return tuple(value @ next(weights) if use == "low" else value.log() for use in order)

    model = built(uses, w=weight(32, 8), v=weight(32, 8, seed=1))
    found = made(model, (X,), under)
    assert [cast for cast in found.casts if cast[0] == "/exp#0"] == [("/exp#0", under[:4], ("/matmul#0", "/matmul#1"))]
    assert [cast[0] for cast in found.casts if "/" in cast[0]] == ["/exp#0", "/matmul#0", "/matmul#1"]
    assert close(found.module(X), model(X))


@pytest.mark.parametrize("order", ORDERS)
def test_a_low_value_used_by_one_low_and_two_high_consumers_has_one_cast_that_the_high_ones_share(
    order: tuple[str, ...],
) -> None:
    def uses(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        value, high = x @ self.w, iter((torch.exp, torch.expm1))
        return tuple(value @ self.w if use == "high" else next(high)(value) for use in order)

    found = made(built(uses, w=weight(32, 32)), (X,), "bf16-inference")
    assert [cast for cast in found.casts if cast[0] == "/matmul#0"] == [
        ("/matmul#0", "fp32", ("/exp#0", "/expm1#0") if order.index("low") < 3 else ())
    ]


def parameter_uses(order: tuple[str, ...]) -> nn.Module:
    def uses(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.linear(x, self.w) if use == "low" else self.w.exp() for use in order)

    return built(uses, w=weight(8, 32))


@pytest.mark.parametrize("order", ORDERS)
def test_a_parameter_used_both_ways_has_one_extra_copy_and_its_bytes_are_told(order: tuple[str, ...]) -> None:
    model = parameter_uses(order)
    found = made(model, (X,))
    assert found.folds == [("w", "bf16", True, 8 * 32 * 2)]
    assert [cast for cast in found.casts if cast[0] == "w"] == []
    assert found.result.plan.folds[0].consumers == ("/linear#0", "/linear#1")
    stored = [*found.module.parameters(), *found.module.buffers()]
    assert sorted((t.numel(), str(t.dtype)) for t in stored) == [(256, "torch.bfloat16"), (256, "torch.float32")]
    assert {key: value.dtype for key, value in found.module.state_dict().items()} == {"w": torch.float32}
    assert "512" in as_full.render(found.result.report, verbose=True)
    assert close(found.module(X), model(X))


@pytest.mark.parametrize("order", ORDERS)
def test_in_training_a_parameter_used_both_ways_has_one_cast_and_one_gradient(order: tuple[str, ...]) -> None:
    model = parameter_uses(order)
    found = made(model, (X,), "bf16-training")
    assert [cast for cast in found.casts if cast[0] == "w"] == [("w", "bf16", ("/linear#0", "/linear#1"))]
    for each in (model, found.module):
        sum(part.sum() for part in each(X)).backward()
    assert close(found.module.w.grad, model.w.grad)


def test_a_parameter_used_only_low_is_stored_low_and_not_duplicated() -> None:
    found = made(parameter_uses(("low", "low")), (X,))
    assert found.folds == [("w", "bf16", False, 0)]
    stored = [*found.module.parameters(), *found.module.buffers()]
    assert [(t.shape, t.dtype) for t in stored] == [((8, 32), torch.bfloat16)]


def test_a_parameter_used_only_high_is_left_alone() -> None:
    found = made(parameter_uses(("high", "high")), (X,))
    assert not found.folds and not found.casts and found.module.w.dtype == torch.float32


def test_an_infer_type_op_before_a_matmul_is_not_lowered_at_a_cost() -> None:
    def before(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = x.relu()
        return hidden @ self.w, hidden

    found = made(built(before, w=weight(32, 8)), (X,))
    assert found.low == {"/matmul#0"}
    assert found.casts == [("/relu#0", "bf16", ("/matmul#0",)), ("/matmul#0", "fp32", ("output:0",))]


def test_an_infer_type_op_after_a_matmul_is_not_lowered_at_a_cost() -> None:
    def after(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        product = x @ self.w
        return product, product.relu()

    found = made(built(after, w=weight(32, 8)), (X,))
    assert found.low == {"/matmul#0"}
    assert found.casts == [("x", "bf16", ("/matmul#0",)), ("/matmul#0", "fp32", ("/relu#0", "output:0"))]


def test_an_infer_type_op_between_a_kept_op_and_two_matmuls_is_cast_once() -> None:
    def fork(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = x.exp().relu()
        return hidden @ self.w, hidden @ self.v

    found = made(built(fork, w=weight(32, 8), v=weight(32, 8)), (X,))
    assert len([cast for cast in found.casts if cast[1] == "bf16"]) == 1


# everything ----------------------------------------------------------------------------------------------------------


class Everything(nn.Module):
    """A little of all: convolution, norm with statistics, product, softmax, integers, several inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, image: Tensor, ids: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = F.gelu(self.norm(self.conv(image))).mean((-2, -1)) + self.table(ids) + shift
        scores = self.head(rows)
        return scores.softmax(-1), scores.argmax(-1), rows


EVERYTHING = (torch.randn(4, 3, 6, 6), torch.arange(4), torch.randn(4, 8))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", ["keep-fp32", "pin:fp32"])
def test_everything_excluded_is_bitwise_the_original_with_zero_casts(mode: str, rule: str) -> None:
    model = Everything().eval()
    found = made(model, EVERYTHING, policy(rest=f"'{rule}'", mode=mode))
    assert not found.casts and not found.folds and not found.low and found.new_nodes == 0
    assert same(found.module.eval()(*EVERYTHING), model(*EVERYTHING))
    if mode == "training":
        assert same(found.module.train()(*EVERYTHING), model.train()(*EVERYTHING))
    assert same(dict(found.module.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("low", LOW)
def test_everything_allowed_and_io_free_has_zero_casts(low: str) -> None:
    def net(self: Any, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = (self.linear(x).relu() + self.table(ids)).exp()
        return rows.softmax(-1), rows.argmax(-1)

    model = built(net, linear=nn.Linear(32, 8), table=nn.Embedding(32, 8))
    ids = torch.arange(32)
    allowed = f"{FREE_IO}\nhazards: {{PA206: off}}"  # which would keep the scores of a close argmax high
    found = made(model, (X, ids), policy(rest=f"safe-in-{low}", low=low, more=allowed))
    assert not found.casts and found.new_nodes == 0
    assert {fold[:3] for fold in found.folds} == {
        (name, low, False) for name in ("linear.weight", "linear.bias", "table.weight")
    }
    expected = model.to(LOW[low])(X.to(LOW[low]), ids)
    assert same(found.module(X.to(LOW[low]), ids), expected)


@pytest.mark.parametrize("low", LOW)
def test_everything_allowed_and_io_kept_has_one_cast_per_float_input_and_output(low: str) -> None:
    model = Everything().eval()
    found = made(model, EVERYTHING, policy(rest=f"safe-in-{low}", low=low))
    down = sorted(value for value, to, _ in found.casts if to == low)
    up = sorted(consumers for _, to, consumers in found.casts if to == "fp32")
    assert down == ["image", "shift"] and up == [("output:0",), ("output:2",)] and found.new_nodes == 4
    assert [t.dtype for t in found.module(*EVERYTHING)] == [torch.float32, torch.int64, torch.float32]


# once more -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("under", [*SHIPPED, "fp32", "amp-cpu-bf16"])
def test_converting_twice_plans_nothing_the_second_time(under: str) -> None:
    once = made(Everything().eval(), EVERYTHING, under)
    again = made(once.module.eval(), EVERYTHING, under)
    assert not again.casts and not again.folds and again.new_nodes == 0
    assert same(again.module.eval()(*EVERYTHING), once.module.eval()(*EVERYTHING))


def test_a_model_that_was_swapped_for_fp8_is_not_converted_again_and_that_is_said() -> None:
    model, x = nn.Sequential(nn.Linear(32, 32), nn.ReLU()), torch.randn(16, 32)
    once = made(model, (x,), "fp8-training-hopper")
    assert [swap.module for swap in once.result.plan.swaps] == ["0"]
    with pytest.raises(pa.InputError, match=r"module 0 is a Float8Linear, .*: this model was swapped for fp8 before"):
        made(once.module, (x,), "fp8-training-hopper")
