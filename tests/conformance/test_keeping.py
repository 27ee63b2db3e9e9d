"""Placing casts: what a conversion must leave as it is. The user's own casts, outputs, integers, odd shapes, ties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conformance.small import ALL_LOW, LOW, SHIPPED, built, close, dtypes, made, policy, same, weight

X = torch.rand(8, 16, generator=torch.Generator().manual_seed(0)) + 0.1


# the user's casts and the outputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("way", ["float", "to", "type", "type_as", "dtype"])
def test_a_users_explicit_cast_to_fp32_survives(low: str, way: str) -> None:
    def cast(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ self.w
        if way == "float":
            wide = y.float()
        elif way == "to":
            wide = y.to(torch.float32)
        elif way == "type":
            wide = y.type(torch.float32)
        elif way == "type_as":
            wide = y.type_as(self.exact)
        else:
            wide = F.softmax(y, -1, dtype=torch.float32)
        return wide, wide.square() @ self.w

    model = built(cast, w=weight(16, 16))
    model.register_buffer("exact", torch.ones(1))
    free = policy(
        "op: matmul, class: safe-in-" + low, "op: square, class: keep-fp32", low=low, more="keep_io_types: false"
    )
    found = made(model, (X,), free)
    first, _ = found.module(X.to(LOW[low]))
    assert first.dtype == torch.float32
    product = X.to(LOW[low]) @ model.w.to(LOW[low])
    expected = F.softmax(product, -1, dtype=torch.float32) if way == "dtype" else product.float()
    assert torch.equal(first, expected)


@pytest.mark.parametrize("under", [*SHIPPED, "bf16", "fp16"])
def test_names_order_and_formats_of_outputs_are_kept(under: str) -> None:
    """A cast that is also an output, chained casts, an output returned twice, an input returned unchanged."""

    def echoes(self: Any, x: Tensor, ids: Tensor) -> dict[str, Any]:
        scores = self.linear(x)
        half = scores.half()
        chained = half.float().to(torch.bfloat16).double()
        return {"scores": scores, "half": half, "chained": [chained, half.float()], "again": scores, "x": x, "ids": ids}

    model, ids = built(echoes, linear=nn.Linear(16, 4)), torch.arange(8)
    found = made(model, (X, ids), ALL_LOW.get(under, under))
    expected, output = model(X, ids), found.module.eval()(X, ids)
    assert list(output) == ["scores", "half", "chained", "again", "x", "ids"]
    assert dtypes(output) == [
        torch.float32,
        torch.float16,
        torch.float64,
        torch.float32,
        torch.float32,
        torch.float32,
        torch.int64,
    ]
    assert close(output, expected) and output["x"] is X and output["ids"] is ids
    assert torch.equal(output["scores"], output["again"])
    assert output["half"].float().equal(output["chained"][1]) and output["chained"][0].equal(
        output["half"].bfloat16().double()
    )


@pytest.mark.parametrize("low", LOW)
def test_an_output_returned_twice_is_cast_once(low: str) -> None:
    def twice(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        y = x @ self.w
        return y, x, y

    found = made(built(twice, w=weight(16, 4)), (X,), ALL_LOW[low])
    assert found.casts == [("x", low, ("/matmul#0",)), ("/matmul#0", "fp32", ("output:0", "output:2"))]
    first, given, second = found.module(X)
    assert first is second and given is X


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float64])
def test_a_chain_of_the_users_casts_rounds_as_the_user_wrote_it(to: torch.dtype) -> None:
    def chain(self: Any, x: Tensor) -> Tensor:
        return x.to(to).float().to(torch.bfloat16).float()

    found = made(built(chain), (X,), ALL_LOW["bf16"])
    assert same(found.module(X), chain(None, X)) and found.new_nodes == 0


# integers, several outputs, odd shapes -------------------------------------------------------------------------------


def integers(self: Any, ids: Tensor, mask: Tensor, where: Tensor) -> dict[str, Any]:
    rows = self.table(ids) * mask[..., None]
    scores = self.linear(rows)
    left, right = scores.split([3, 5], -1)
    top, best = left.topk(2, -1)
    largest, at = right.max(-1)
    chunk, _ = scores.chunk(2, 0)
    order = scores.sort(-1)
    picked = scores.gather(1, where).masked_fill(~mask[:, None], -1.0)
    return {
        "top": top, "best": best, "largest": largest, "at": at, "chunk": chunk, "sorted": order.values,
        "order": order.indices, "picked": torch.where(mask[:, None], picked, picked * 2), "ids": ids + 1, "mask": mask,
        "count": mask.sum(), "rows": scores[ids % 3], "hot": F.one_hot(ids, 10), "min": scores.min(0).indices,
    }  # fmt: skip


@pytest.mark.parametrize("under", [*SHIPPED, "bf16", "fp16"])
def test_integers_booleans_embeddings_masks_gathers_and_multi_outputs_keep_their_formats(under: str) -> None:
    torch.manual_seed(1)
    model = built(integers, table=nn.Embedding(10, 16), linear=nn.Linear(16, 8))
    args = (torch.arange(8), torch.arange(8) % 3 > 0, torch.arange(16).reshape(8, 2) % 8)
    found = made(model, args, ALL_LOW.get(under, under))
    expected, output = model(*args), found.module.eval()(*args)
    assert list(output) == list(expected) and dtypes(output) == dtypes(expected)
    for name in ("best", "at", "order", "ids", "mask", "count", "hot", "min"):
        assert torch.equal(output[name], expected[name]), name
    for name in ("top", "largest", "chunk", "sorted", "picked", "rows"):
        assert close(output[name], expected[name]), name
    numbers = {op.key for op in found.result.report.graph.ops if op.outputs[0].format in ("int64", "bool")}
    assert numbers and not numbers & {value.partition(":")[0] for value, _, _ in found.casts}


@pytest.mark.parametrize("under", [*SHIPPED, "bf16", "fp16"])
def test_zero_size_tensors_pass(under: str) -> None:
    def empty(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        y = self.linear(x)
        return y, torch.cat([y, self.linear(x.new_zeros(3, 16))]), y.sum(), x[:, :0] @ self.none

    model = built(empty, linear=nn.Linear(16, 4), none=nn.Parameter(torch.zeros(0, 5)))
    x = torch.zeros(0, 16)
    found = made(model, (x,), ALL_LOW.get(under, under), verify=True)
    assert close(found.module.eval()(x), model(x)) and found.result.report.verification.passed


@pytest.mark.parametrize("under", [*SHIPPED, "bf16", "fp16"])
def test_a_scalar_tensor_passes(under: str) -> None:
    def scaled(self: Any, x: Tensor, scale: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        y = self.linear(x).abs() * scale.exp() / self.temperature  # positive: nothing cancels in the sums
        return y, scale + 1, y.mean(), (y * count).sum() + scale, torch.tensor(2.0) * scale

    model = built(scaled, linear=nn.Linear(16, 4), temperature=nn.Parameter(torch.tensor(0.7)))
    args = (X, torch.tensor(0.3), torch.tensor(3))
    found = made(model, args, ALL_LOW.get(under, under))
    assert close(found.module.eval()(*args), model(*args), 5e-2)


# modules and parameters with several names ---------------------------------------------------------------------------


class Shared(nn.Module):
    """A module called twice, nested lists and dictionaries, one parameter under two names, one module under two."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(16, 16)
        self.nested = nn.ModuleList(nn.ModuleList(nn.Linear(16, 16) for _ in range(2)) for _ in range(2))
        self.named = nn.ModuleDict({"a": nn.Sequential(nn.Linear(16, 16), nn.GELU())})
        self.table, self.head = nn.Embedding(12, 16), nn.Linear(16, 12, bias=False)
        self.head.weight = self.table.weight
        self.alias = self.named["a"][0]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.twice(torch.tanh(self.twice(self.table(ids))))
        for group in self.nested:
            for layer in group:
                x = x + layer(x).relu()
        return self.head(self.alias(self.named["a"](x)))


@pytest.mark.parametrize("under", SHIPPED)
def test_modules_called_twice_nested_lists_and_one_parameter_under_two_names(under: str) -> None:
    torch.manual_seed(0)
    model, ids = Shared().eval(), torch.arange(12)
    found = made(model, (ids,), under)
    converted = found.module.eval()
    assert {"twice/linear#0", "twice/linear#1", "nested.1.0/linear#0", "head/linear#0"} <= found.low
    assert close(converted(ids), model(ids))
    assert converted.get_parameter("head.weight") is converted.get_parameter("table.weight")
    assert converted.get_parameter("alias.weight") is converted.get_parameter("named.a.0.weight")
    assert list(converted.state_dict()) == list(model.state_dict())
    assert len(list(converted.parameters())) == len(list(model.parameters()))
    values = [(value, to) for value, to, _ in found.casts]
    assert len(values) == len(set(values))


def test_tied_parameters_stay_tied_through_a_training_step() -> None:
    torch.manual_seed(0)
    model, ids = Shared(), torch.arange(12)
    found = made(model.train(), (ids,), "bf16-training")
    for each in (model, found.module.train()):
        optimizer = torch.optim.SGD(each.parameters(), 0.1)
        F.cross_entropy(each(ids), ids).backward()
        optimizer.step()
    assert found.module.get_parameter("head.weight") is found.module.get_parameter("table.weight")
    assert close(found.module.get_parameter("table.weight"), model.table.weight, 1e-2)
