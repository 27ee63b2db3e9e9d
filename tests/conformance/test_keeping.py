"""Placing casts, the other half: what a conversion must leave as it is. The user's own casts and regions, outputs,
integers, odd shapes, ties, models that are not fp32, dynamic sizes, and sizes of a resize."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.report import as_full
from tests.conformance.small import LOW, built, close, leaves, made, policy, same, weight

X = torch.rand(8, 16, generator=torch.Generator().manual_seed(0)) + 0.1
SHIPPED = ["bf16-inference", "fp16-inference", "bf16-training", "fp16-training"]
ALL_LOW = {"bf16": policy(rest="safe-in-bf16"), "fp16": policy(rest="safe-in-fp16", low="fp16")}


def dtypes(output: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in leaves(output)]


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
        y = self.linear(x) * scale.exp() / self.temperature
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


# regions and formats of the user's -----------------------------------------------------------------------------------


class Regions(nn.Module):
    """Both formats, a region switched off inside another, an fp32 region, and layers outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        outside = self.layers[0](x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            bf16 = self.layers[1](outside)
            with torch.autocast("cpu", enabled=False):
                nested = self.layers[2](bf16.float())
            after = self.layers[3](nested)
        with torch.autocast("cpu", dtype=torch.float16):
            fp16 = self.layers[4](outside)
        with torch.autocast("cpu", enabled=False):
            island = self.layers[5](outside.float()).exp()
        return {"outside": outside, "bf16": bf16, "nested": nested, "after": after, "fp16": fp16, "island": island}


INSIDE = {"1": "bf16", "2": "fp32", "3": "bf16", "4": "fp16", "5": "fp32"}


@pytest.mark.parametrize("under", [*SHIPPED, "bf16", "fp16"])
def test_fp32_regions_autocast_regions_and_a_nested_off_region_are_all_respected(under: str) -> None:
    torch.manual_seed(0)
    model = Regions().eval()
    found = made(model, (X,), ALL_LOW.get(under, under))
    for layer, format_ in INSIDE.items():
        assert found.formats[f"layers.{layer}/linear#0"] == format_, layer
    assert found.formats["layers.0/linear#0"] == under[:4]
    assert {fold[0] for fold in found.folds} <= {"layers.0.weight", "layers.0.bias"}
    output, expected = found.module.eval()(X), model(X)
    assert dtypes(output) == dtypes(expected) and close(output, expected)
    with torch.no_grad():  # the island computes in fp32, bit for bit, on what it is given
        assert torch.equal(output["island"], model.layers[5](output["outside"]).exp())
        assert torch.equal(output["nested"], model.layers[2](output["bf16"].float()))


def trunk() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8)).eval()


@pytest.mark.parametrize("under", [*SHIPPED, "fp32"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_already_in_another_format_is_left_without_a_crash(under: str, dtype: torch.dtype) -> None:
    model, x = trunk().to(dtype), X.to(dtype)
    found = made(model, (x,), under, verify=True)
    assert not found.casts and not found.folds
    assert same(found.module.eval()(x), model(x))


@pytest.mark.parametrize("under", SHIPPED)
def test_a_mixed_model_converts_without_a_crash(under: str) -> None:
    def mixed(self: Any, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x.half()).float())
        return self.last(self.second(hidden.bfloat16()).float()) + self.exact(hidden.double()).float()

    torch.manual_seed(0)
    parts = (nn.Linear(16, 16) for _ in range(4))
    first, second, last, exact = next(parts).half(), next(parts).bfloat16(), next(parts), next(parts).double()
    model = built(mixed, first=first, norm=nn.LayerNorm(16), second=second, last=last, exact=exact)
    found = made(model, (X,), under, verify=True)
    assert found.formats["first/linear#0"] == "fp16" and found.formats["second/linear#0"] == "bf16"
    assert found.formats["exact/linear#0"] == "fp64" and found.formats["last/linear#0"] == under[:4]
    assert close(found.module.eval()(X), model(X))


@pytest.mark.parametrize("under", SHIPPED)
def test_a_float64_model_is_left_alone_and_said_to_be(under: str) -> None:
    model, x = trunk().double(), X.double()
    report = pa.audit(model, (x,), policy=under, device="h100", verify=False)
    reasons = {each.reason for each in report.decisions}
    assert reasons == {"fact: captured in fp64, not the policy's fp32: left alone"}
    assert {each.chosen for each in report.decisions} == {"fp64"}
    assert "captured in fp64, not the policy's fp32: left alone" in as_full.render(report, verbose=True)


# sizes ---------------------------------------------------------------------------------------------------------------


class Tokens(nn.Module):
    """Attention over a sequence, positions, a mask, a reshape that uses the batch: every way a size gets in."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(50, 16), nn.Embedding(64, 16)
        self.mix, self.head = nn.Linear(16, 48), nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        batch, length = ids.shape
        x = self.table(ids) + self.place(torch.arange(length))
        q, k, v = self.mix(x).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        later = torch.full((length, length), torch.finfo(x.dtype).min).triu(1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=later)
        return self.head(y.transpose(1, 2).reshape(batch, length, 16)), torch.zeros(batch, length) + x.mean(-1)


@pytest.mark.parametrize("under", [*SHIPPED, "bf16", "fp16"])
def test_dynamic_batch_and_sequence_stay_dynamic_after_conversion(under: str) -> None:
    torch.manual_seed(0)
    model, dim = Tokens().eval(), torch.export.Dim
    shapes = {"ids": {0: dim("batch", min=1, max=64), 1: dim("length", min=2, max=64)}}
    found = made(model, (torch.arange(12).reshape(2, 6),), ALL_LOW.get(under, under), dynamic_shapes=shapes)
    converted = found.module.eval()
    for batch, length in ((2, 6), (1, 2), (5, 33), (7, 64)):
        ids = torch.arange(batch * length).reshape(batch, length) % 50
        assert close(converted(ids), model(ids)), (batch, length)
    assert dict(found.result.report.graph.symbols).keys() == {"batch", "length"}
    again = torch.export.export(converted, (torch.arange(12).reshape(2, 6),), dynamic_shapes=((shapes["ids"],),))
    ids = torch.arange(9 * 21).reshape(9, 21) % 50
    assert same(again.module()(ids), converted(ids))


RESIZES: dict[str, dict[str, Any]] = {
    "size": {"size": (301, 257), "mode": "bilinear"},
    "factor": {"scale_factor": 1 / 3, "mode": "bilinear"},
    "factors": {"scale_factor": (2.7, 1.3), "mode": "nearest"},
    "recomputed": {"scale_factor": 2.1, "mode": "bicubic", "recompute_scale_factor": True},
    "kept": {"scale_factor": 2.1, "mode": "bilinear", "recompute_scale_factor": False},
    "exact": {"scale_factor": 1.7, "mode": "nearest-exact"},
    "area": {"size": (9, 7), "mode": "area"},
    "corners": {"scale_factor": 3.3, "mode": "bilinear", "align_corners": True},
}


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", RESIZES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_and_scale_factors_of_a_resize_are_never_lowered(name: str, low: str, dynamic: bool) -> None:
    def resized(self: Any, x: Tensor) -> Tensor:
        return F.interpolate(self.conv(x), **RESIZES[name])

    model, x = built(resized, conv=nn.Conv2d(1, 2, 1)), torch.rand(1, 1, 41, 30)
    shapes = {"x": {2: torch.export.Dim("h", min=16, max=4096), 3: torch.export.Dim("w", min=16, max=4096)}}
    found = made(model, (x,), ALL_LOW[low], dynamic_shapes=shapes if dynamic else None)
    (key,) = [key for key in found.low if "conv" not in key]
    node = next(node for node in found.result.graph.nodes if node.meta.get("op_key") == key)
    given = [leaf for leaf in leaves((node.args, node.kwargs)) if isinstance(leaf, float)]
    wanted = RESIZES[name].get("scale_factor", ())
    factors = list(wanted) if isinstance(wanted, tuple) else [wanted] * 2
    assert not given or given == pytest.approx(factors, rel=1e-15)
    for size in [(41, 30), (301, 203)] if dynamic else [(41, 30)]:
        image = torch.rand(1, 1, *size)
        assert found.module(image).shape == model(image).shape
        assert close(found.module(image), model(image), 2e-2)


@pytest.mark.parametrize("low", LOW)
def test_a_size_computed_from_the_shape_is_not_lowered(low: str) -> None:
    def resized(self: Any, x: Tensor) -> Tensor:
        high, wide = x.shape[-2:]
        return F.interpolate(self.conv(x), size=(high * 3 // 2, wide // 2), mode="bilinear")

    model, shapes = built(resized, conv=nn.Conv2d(1, 2, 1)), {"x": {2: torch.export.Dim("h", min=16, max=4096)}}
    found = made(model, (torch.rand(1, 1, 41, 30),), ALL_LOW[low], dynamic_shapes=shapes)
    for height in (41, 2051):  # fp16 holds no odd number above 2048, bf16 none above 256
        assert found.module(torch.rand(1, 1, height, 30)).shape == (1, 2, height * 3 // 2, 15)
