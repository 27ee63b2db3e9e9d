"""Placing casts: models in which formats or sizes are the user's. Regions, models that are not fp32, dynamic sizes, and
sizes of a resize."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.report import as_full
from tests.conformance.small import ALL_LOW, LOW, SHIPPED, built, close, dtypes, leaves, made, same, weight

X = torch.rand(8, 16, generator=torch.Generator().manual_seed(0)) + 0.1


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
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_low_model_whose_ops_autocast_would_refuse_is_left_without_a_crash(under: str, dtype: torch.dtype) -> None:
    def adds(self: Any, x: Tensor, index: Tensor) -> Tensor:
        return self.linear(x).scatter_add(1, index, x)

    model, index = built(adds, linear=nn.Linear(16, 16)).to(dtype), torch.zeros(8, 16, dtype=torch.int64)
    found = made(model, (X.to(dtype), index), under)
    assert not found.casts and not found.folds
    assert same(found.module.eval()(X.to(dtype), index), model(X.to(dtype), index))


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("maker", [torch.polar, torch.complex])
def test_complex_numbers_are_made_of_what_they_were_made_of(low: str, maker: Any) -> None:
    def turned(self: Any, x: Tensor) -> Tensor:
        y = x @ self.w
        return torch.view_as_real(maker(y, y.relu())).flatten(1) @ self.v

    model = built(turned, w=weight(16, 4), v=weight(8, 4))
    found = made(model, (X,), ALL_LOW[low])
    assert next(op for op in found.result.report.graph.ops if op.op == maker.__name__).outputs[0].format == "complex64"
    assert ("/matmul#0", "fp32", (f"/{maker.__name__}#0",)) in found.casts
    assert close(found.module(X), model(X))


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


def test_a_dimension_left_open_that_the_model_fixes_is_said_to_be_fixed() -> None:
    def fixes(self: Any, x: Tensor) -> Tensor:
        return self.linear(x) + self.places

    model = built(fixes, linear=nn.Linear(16, 16), places=nn.Parameter(torch.zeros(6, 16)))
    auto = torch.export.Dim.AUTO
    found = made(model, (torch.randn(2, 6, 16),), dynamic_shapes={"x": {0: auto, 1: auto}})
    assert [note for note in found.result.report.graph.notes if "dimension" in note] == [
        "dimension 1 of x is fixed at 6: the model depends on that size"
    ]


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
