"""Rules PA201 to PA209 on many spellings: what must be found, at its line and mended, and what must be left alone.

A model's guilty lines end in `# guilty`. The converted model is compared with the captured one: floats by relative L2
against the policy's tolerance, decisions by the share that changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precision_audit as pa
from precision_audit.records import Finding

MINE = tuple(f"PA20{number}" for number in range(1, 10))
TOLERANCE = {"bf16-inference": 3e-2, "fp16-inference": 5e-3}
Inputs = Callable[[], tuple[Any, ...]]


class Model(nn.Module):
    """A forward written as a function of the module, with parts given by name."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    if TYPE_CHECKING:  # a part is what it was given as

        def __getattr__(self, name: str) -> Any: ...


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _linear(k: int, n: int, bias: float = 0.0, scale: float = 1.0, seed: int = 3) -> nn.Linear:
    torch.manual_seed(seed)
    made = nn.Linear(k, n)
    with torch.no_grad():
        made.weight.mul_(scale)
        made.bias.fill_(bias)
    return made


# --- what must be found -----------------------------------------------------------------------------------------------


class RotaryEinsum(Model):
    def forward(self, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1], device=x.device).to(x.dtype)
        angles = torch.einsum("i,j->ij", t, self.inv)  # guilty
        table = torch.cat((angles, angles), dim=-1)
        y: Tensor = self.proj(x) * table.cos() + torch.roll(x, 1, -1) * table.sin()
        return y


class RotaryOuter(Model):
    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[1]).float(), self.inv)  # guilty
        y: Tensor = self.proj(x * torch.cat([torch.cos(angles), torch.sin(angles)], -1))
        return y


class RotaryModule(Model):
    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        y: Tensor = self.proj(x) + self.table(position)
        return y


class Table(Model):
    def forward(self, position: Tensor) -> Tensor:
        angles = position.unsqueeze(-1) * self.inv  # guilty
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


class Alibi(Model):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[-2]
        place = torch.arange(n, dtype=q.dtype)  # guilty
        bias = -0.5 * (place[:, None] - place[None, :]).abs()
        return torch.softmax(q @ k.transpose(-1, -2) / 8 + bias, -1) @ v


class IdsInFloats(Model):
    def forward(self, features: Tensor) -> Tensor:
        ids = features[..., 0].to(torch.int64)
        y: Tensor = F.embedding(ids, self.rows) + self.proj(features[..., 1:])  # guilty
        return y


class IdsByIndexing(Model):
    def forward(self, features: Tensor) -> Tensor:
        rows = self.rows[features.select(-1, 0).int()]  # guilty
        y: Tensor = rows * self.proj(features[..., 1:])
        return y


class Siren(Model):
    def forward(self, x: Tensor) -> Tensor:
        angles = 30.0 * self.first(x)  # guilty
        y: Tensor = self.proj(torch.sin(angles))
        return y


class Fourier(Model):
    def forward(self, x: Tensor) -> Tensor:
        angles = x[..., None] * (2.0 ** torch.arange(10) * math.pi)  # guilty
        y: Tensor = self.proj(torch.sin(angles).flatten(1))
        return y


class Phase(Model):
    def forward(self, t: Tensor) -> Tensor:
        return self.proj(torch.cat([t.mul(self.inv).sin(), t.mul(self.inv).cos()], -1))  # guilty


class Warp(Model):
    def forward(self, image: Tensor, flow: Tensor) -> Tensor:
        h, w = image.shape[-2:]
        rows = torch.linspace(-1, 1, h, dtype=image.dtype)
        y, x = torch.meshgrid(rows, torch.linspace(-1, 1, w, dtype=image.dtype), indexing="ij")
        grid = torch.stack((x, y), -1) + flow
        return F.grid_sample(image, grid, mode="bilinear", align_corners=True)  # guilty


class Transformer(Model):
    def forward(self, image: Tensor) -> Tensor:
        theta = self.loc(image.mean((2, 3))).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(image.shape), align_corners=False)
        return F.grid_sample(image, grid, align_corners=False)  # guilty


class OnePass(Model):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.sum(-1, keepdim=True) / x.shape[-1]
        square = torch.einsum("...i,...i->...", x, x).unsqueeze(-1) / x.shape[-1]
        spread = torch.sub(square, mean * mean)  # guilty
        return self.scale * x / torch.sqrt(spread.clamp_min(0) + 1e-3)


class Distances(Model):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        xx, yy = x.square().sum(1, keepdim=True), y.square().sum(1)[None]
        d2 = torch.addmm(xx + yy, x, y.t(), alpha=-2)
        return torch.exp(-d2 * 4)  # guilty


class Nearest(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.proj(x)
        d = (h * h).sum(-1, keepdim=True) - 2 * h @ self.codes.T + (self.codes**2).sum(-1)  # guilty
        return d.argmin(-1)


class PrefixSums(Model):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.cumsum(x, -1)
        return total[..., 8:] - total[..., :-8]  # guilty


class Centred(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.proj(x)
        return h - h.mean(-1, keepdim=True)  # guilty


class Scattered(Model):
    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        return x.new_zeros(8).index_add(0, place, x)  # guilty


class Router(Model):
    def forward(self, x: Tensor) -> Tensor:
        best = self.gate(x).topk(2, dim=-1).indices  # guilty
        return torch.gather(self.proj(x), -1, best)


class Ranking(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        score = self.head(x).squeeze(-1).sigmoid()  # guilty
        return score, score.argsort(-1, descending=True)


class MethodArgmax(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.table, self.bias).max(dim=-1)[1]  # guilty


class Bins(Model):
    def forward(self, x: Tensor) -> Tensor:
        return torch.bucketize(x.sqrt() * 0.9, self.edges)  # guilty


class Quantised(Model):
    def forward(self, x: Tensor) -> Tensor:
        scaled = x * 64
        part = scaled - torch.floor(scaled)  # guilty
        y: Tensor = self.proj(part)
        return y


class Sharp(Model):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.head(x), -1)  # guilty


class SmallDifference(Model):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x / (x - y)


class Logistic(Model):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(24):
            x = 3.7 * x * (1 - x)  # guilty
        return x


class BceByHand(Model):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        p = self.head(x).sigmoid()
        return -(y * torch.log(p) + (1 - y) * torch.log(1 - p))  # guilty


class Schedule(Model):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        kept = torch.index_select(self.kept, 0, t).view(-1, 1)
        noise = self.proj(x)
        return (x - kept.sqrt() * noise) * (1 - kept).rsqrt()  # guilty


class SineTable(Model):
    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.size(1)).unsqueeze(1)
        table = torch.zeros(x.size(1), 32)
        table[:, 0::2] = torch.sin(place * self.inv)  # guilty
        table[:, 1::2] = torch.cos(place * self.inv)  # guilty
        y: Tensor = self.proj(x + table)
        return y


class Polar(Model):
    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), self.inv)  # guilty
        turn = torch.polar(torch.ones_like(angles), angles)
        y = torch.view_as_complex(self.proj(x).float().reshape(1, -1, 16, 2)) * turn
        return torch.view_as_real(y).flatten(2)


class IdsStraight(Model):
    def forward(self, ids: Tensor) -> Tensor:
        return torch.index_select(self.rows, 0, ids.long())  # guilty


class Interpolated(Model):
    def forward(self, image: Tensor, c: Tensor) -> Tensor:
        p = c * (image.shape[-1] - 1)
        i = torch.floor(p)  # guilty
        part, i = p - i, i.long()
        left, right = image[..., i], image[..., (i + 1).clamp(max=image.shape[-1] - 1)]
        return left * (1 - part) + right * part


class Inplace(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = x.clone()
        h.sub_(h.mean(-1, keepdim=True))  # guilty
        y: Tensor = self.proj(h)
        return y


class Covariance(Model):
    def forward(self, x: Tensor) -> Tensor:
        return x.T @ x / len(x) - torch.outer(x.mean(0), x.mean(0))  # guilty


class NormOfOffset(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (64,))  # guilty


class Derivative(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.kernel)  # guilty


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = _linear(32, 8, bias=12.0)
        self.experts = nn.ModuleList([_linear(32, 32, seed=n) for n in range(8)])

    def forward(self, x: Tensor) -> Tensor:
        chosen = F.one_hot(self.gate(x).argmax(-1), 8).to(x.dtype)  # guilty
        return torch.einsum("be,bed->bd", chosen, torch.stack([expert(x) for expert in self.experts], 1))


class Mixture(Model):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(x)
        return y


class Threshold(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).ge(40.0)  # guilty


class Tent(Model):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20):
            x = torch.where(x < 0.5, 1.99 * x, 1.99 * (1 - x))  # guilty
        return x


class Average(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        for step in x.unbind(1):
            h = h * 0.999 + 0.001 * step  # guilty
        return h


class Focal(Model):
    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.head(x))
        return -(p**2) * torch.log(1 - p)  # guilty


class MadeInForward(Model):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        kept = torch.cumprod(1 - torch.linspace(1e-4, 2e-2, 1000, dtype=x.dtype), 0)[t][:, None]
        y: Tensor = self.proj(x) / (1 - kept)  # guilty
        return y


def _inv(count: int = 16) -> Tensor:
    return 10000.0 ** (-torch.arange(count) / count)


def _pairs() -> tuple[Tensor, Tensor]:
    x = 2 + _draw(24, 32)
    return x, x + 0.05 * _draw(24, 32, seed=1)


IMAGE = torch.nn.functional.interpolate(_draw(1, 1, 16, 16), size=(300, 300), mode="bilinear")

BAD: dict[str, tuple[str, str, nn.Module, Inputs]] = {
    "rotary, einsum": (
        "PA201",
        "bf16",
        RotaryEinsum(inv=_inv(), proj=_linear(32, 32)),
        lambda: (_draw(1, 900, 32),),
    ),
    "rotary, outer": ("PA201", "bf16", RotaryOuter(inv=_inv(), proj=_linear(32, 32)), lambda: (_draw(1, 900, 32),)),
    "rotary, given positions": (
        "PA202",
        "bf16",
        RotaryModule(table=Table(inv=_inv()), proj=_linear(32, 32)),
        lambda: (_draw(600, 32), torch.linspace(3, 1700.5, 600)),
    ),
    "alibi": ("PA201", "bf16", Alibi(), lambda: tuple(_draw(1, 700, 16, seed=n) for n in range(3))),
    "ids, embedding": (
        "PA201",
        "fp16",
        IdsInFloats(rows=_draw(5000, 8), proj=_linear(3, 8)),
        lambda: (torch.cat((torch.tensor([[2049.0], [3001], [4999], [4097]]), _draw(4, 3)), 1),),
    ),
    "ids, indexing": (
        "PA201",
        "bf16",
        IdsByIndexing(rows=_draw(900, 8), proj=_linear(3, 8)),
        lambda: (torch.cat((torch.tensor([[257.0], [301], [899], [513]]), _draw(4, 3)), 1),),
    ),
    "siren": ("PA202", "bf16", Siren(first=_linear(3, 64, scale=4), proj=_linear(64, 8)), lambda: (_draw(64, 3),)),
    "fourier features": ("PA202", "bf16", Fourier(proj=_linear(30, 8)), lambda: (torch.rand(64, 3),)),
    "phase of a time": (
        "PA202",
        "fp16",
        Phase(inv=_inv(), proj=_linear(32, 8)),
        lambda: (torch.tensor([[999.3], [871.7], [412.9]]),),
    ),
    "warp by a flow": ("PA203", "bf16", Warp(), lambda: (IMAGE, 0.01 * _draw(1, 300, 300, 2))),
    "spatial transformer": (
        "PA203",
        "bf16",
        Transformer(loc=_linear(1, 6, bias=0.4, scale=0.1)),
        lambda: (IMAGE,),
    ),
    "one-pass variance": (
        "PA204",
        "bf16",
        OnePass(scale=torch.ones(64)),
        lambda: (6 + 0.2 * _draw(16, 64),),
    ),
    "kernel of expanded distances": ("PA207", "bf16", Distances(), _pairs),
    "prefix sums": ("PA204", "bf16", PrefixSums(), lambda: (1 + 0.1 * _draw(4, 600),)),
    "a mean taken off": (
        "PA204",
        "bf16",
        Centred(proj=_linear(16, 64, bias=40.0)),
        lambda: (_draw(32, 16),),
    ),
    "scattered sums": ("PA205", "bf16", Scattered(), lambda: (0.5 + torch.rand(16000), torch.arange(16000) % 8)),
    "router": (
        "PA206",
        "bf16",
        Router(gate=_linear(32, 64, bias=30.0), proj=_linear(32, 64, seed=4)),
        lambda: (_draw(256, 32),),
    ),
    "ranking after sigmoid": ("PA206", "bf16", Ranking(head=_linear(24, 1, bias=5.0)), lambda: (_draw(20, 50, 24),)),
    "max with indices": (
        "PA206",
        "bf16",
        MethodArgmax(table=0.1 * _draw(500, 32, seed=1), bias=torch.full((500,), 20.0)),
        lambda: (_draw(200, 32),),
    ),
    "nearest code": (
        "PA204",
        "bf16",
        Nearest(proj=_linear(16, 16, bias=4.0), codes=4 + _draw(64, 16)),
        lambda: (_draw(200, 16),),
    ),
    "bins": (
        "PA206",
        "bf16",
        Bins(edges=torch.linspace(0, 1, 400)),
        lambda: (torch.rand(300, generator=torch.Generator().manual_seed(0)),),
    ),
    "fraction": ("PA206", "bf16", Quantised(proj=_linear(32, 8)), lambda: (torch.rand(64, 32),)),
    "sharp softmax": ("PA207", "bf16", Sharp(head=_linear(32, 64, scale=90.0)), lambda: (_draw(64, 32),)),
    "division by a difference": (
        "PA204",
        "bf16",
        SmallDifference(),
        lambda: (3 + _draw(64), 3 + _draw(64) + 0.02 * (2 + _draw(64, seed=1).abs())),
    ),
    "logistic map": ("PA207", "bf16", Logistic(), lambda: (torch.rand(64),)),
    "cross entropy by hand": (
        "PA208",
        "bf16",
        BceByHand(head=_linear(8, 1, bias=8.0)),
        lambda: (_draw(32, 8), (torch.arange(32) % 2).float()[:, None]),
    ),
    "table written in place": (
        "PA201",
        "bf16",
        SineTable(inv=_inv(), proj=_linear(32, 8)),
        lambda: (torch.zeros(1, 800, 32),),
    ),
    "rotary, complex": ("PA201", "bf16", Polar(inv=_inv(), proj=_linear(32, 32)), lambda: (_draw(1, 600, 32),)),
    "ids, straight": (
        "PA201",
        "bf16",
        IdsStraight(rows=_draw(1000, 8)),
        lambda: (torch.tensor([257.0, 301, 899, 513]),),
    ),
    "interpolation by hand": (
        "PA206",
        "bf16",
        Interpolated(),
        lambda: (_draw(4, 256), torch.rand(64, generator=torch.Generator().manual_seed(1))),
    ),
    "a mean taken off in place": ("PA204", "bf16", Inplace(proj=_linear(16, 4)), lambda: (100 + _draw(8, 16),)),
    "covariance": ("PA204", "bf16", Covariance(), lambda: (10 + 0.3 * _draw(64, 8),)),
    "norm of an offset": ("PA204", "bf16", NormOfOffset(), lambda: (100 + _draw(8, 64),)),
    "derivative": (
        "PA204",
        "bf16",
        Derivative(kernel=torch.tensor([[[-1.0, 0.0, 1.0]]])),
        lambda: (5 + torch.linspace(0, 1, 512)[None, None] ** 2,),
    ),
    "mixture of experts": ("PA206", "bf16", Mixture(inner=Experts()), lambda: (_draw(256, 32, seed=9),)),
    "threshold": ("PA206", "bf16", Threshold(head=_linear(32, 1, bias=40.0)), lambda: (_draw(128, 32),)),
    "tent map": (
        "PA207",
        "bf16",
        Tent(),
        lambda: (0.05 + 0.9 * torch.rand(64, generator=torch.Generator().manual_seed(1)),),
    ),
    "slow average": ("PA207", "bf16", Average(), lambda: (_draw(3, 300).abs(),)),
    "focal loss": ("PA208", "bf16", Focal(head=_linear(8, 1, bias=7.0)), lambda: (_draw(32, 8),)),
    "schedule made in forward": (
        "PA209",
        "fp16",
        MadeInForward(proj=_linear(8, 8)),
        lambda: (_draw(3, 8), torch.tensor([0, 4, 700])),
    ),
    "schedule": (
        "PA209",
        "fp16",
        Schedule(kept=torch.cumprod(1 - torch.linspace(1e-4, 2e-2, 1000), 0), proj=_linear(8, 8)),
        lambda: (_draw(3, 8), torch.tensor([0, 5, 800])),
    ),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_found_at_its_line_and_mended(name: str) -> None:
    code, low, model, inputs = BAD[name]
    torch.manual_seed(0)
    policy, args = f"{low}-inference", inputs()
    made = pa.convert(model.eval(), args, policy=policy, verify=False)
    mine = [one for one in _told(made.report.findings) if one.rule == code]
    assert mine, [(one.rule, one.severity, one.op) for one in made.report.findings]
    lines = [one.source.text.strip() for one in mine if one.source]
    if name != "division by a difference":
        assert any(line.endswith("# guilty") for line in lines), lines
    assert all(one.resolved for one in mine), [(one.op, one.pins) for one in mine if not one.resolved]
    with torch.no_grad():
        _same(model(*args), made.module(*args), TOLERANCE[policy])


class OneMinus(Model):
    """A loss close to zero: its error is small beside the one it is taken from."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return 1 - F.cosine_similarity(x, y).mean()


def test_what_is_known_of_sizes_alone() -> None:
    rotary = RotaryOuter(inv=_inv(), proj=_linear(32, 32)).to("meta")
    report = pa.audit(rotary, (torch.empty(1, 900, 32, device="meta"),), policy="bf16-inference")
    (one,) = _told(report.findings)
    assert (one.rule, one.severity, one.evidence.basis) == ("PA201", "warning", "PROVED")
    assert one.source is not None and one.source.text.endswith("# guilty")
    assert dict(one.evidence.numbers)["amax"] == 899


def test_a_loss_near_zero_is_a_note() -> None:
    x = _draw(32, 16)
    report = pa.audit(OneMinus(), (x, x + 0.1 * _draw(32, 16, seed=1)), policy="bf16-inference", verify=False)
    assert _told(report.findings) == []


@pytest.mark.parametrize("name", ["router", "ranking after sigmoid", "rotary, einsum", "schedule"])
def test_most_of_the_model_stays_low(name: str) -> None:
    """What the hazard does not need runs low: every product but those that make the scores."""
    _, low, model, inputs = BAD[name]
    made = pa.convert(model.eval(), inputs(), policy=f"{low}-inference", verify=False)
    formats = dict(made.plan.formats)
    products = [op.key for op in made.report.graph.ops if op.op == "linear"]
    needed = {"router": 1, "ranking after sigmoid": 1}.get(name, 0)
    assert sum(formats[key] == "fp32" for key in products) == needed


def _told(findings: tuple[Finding, ...]) -> list[Finding]:
    return [one for one in findings if one.rule in MINE and one.severity in ("error", "warning")]


def _same(expected: Any, got: Any, tolerance: float) -> None:
    for one, other in zip(_flat(expected), _flat(got), strict=True):
        if one.is_floating_point():
            assert torch.isfinite(other).all()
            assert float((one - other).norm() / one.norm()) <= tolerance
        else:
            assert float((one != other).double().mean()) <= 0.02


def _flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


# --- what must be left alone ------------------------------------------------------------------------------------------


class ShortRotary(Model):
    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * self.inv
        return x * torch.cat([angles.cos(), angles.sin()], -1)


class SineLayer(Model):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.first(x))


class LearnedPositions(Model):
    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.proj(self.rows(ids) + self.places(torch.arange(ids.shape[1])))
        return y


class ShortAlibi(Alibi):
    pass


class Pixels(Model):
    def forward(self, image: Tensor) -> Tensor:
        y: Tensor = self.proj(image / 255 - 0.5)
        return y


class CountedMean(Model):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


class SmallIds(Model):
    def forward(self, features: Tensor) -> Tensor:
        y: Tensor = self.rows[features[:, 0].long()] + self.proj(features[:, 1:])
        return y


class CentredNorm(Model):
    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale


class OnePassWide(OnePass):
    pass


class Residual(Model):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, (32,)))
        return x - x.mean(-1, keepdim=True)


class Zeros(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.proj(x)
        return h + (h - h.mean(-1, keepdim=True)).mean(-1, keepdim=True)  # nothing, but for rounding


class FarPairs(Model):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        d2 = (x * x).sum(-1)[:, None] + (y * y).sum(-1)[None] - 2 * x @ y.T
        return torch.sqrt(d2.clamp(min=1e-4))


class Gate(Model):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.where(self.proj(x) > 0, self.proj(x), 0.01 * self.proj(x))
        return y


class Thresholds(Model):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.proj(x)) > 0.999


class SureArgmax(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.proj(x)
        return logits, logits.argmax(-1)


class Attention(Model):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


class Classifier(Model):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.head(F.gelu(self.proj(x))), -1)


class WithLogits(Model):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.head(x), y)


class MildBce(Model):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(torch.sigmoid(self.head(x)), y)


class MildSchedule(Model):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        kept = self.kept[t][:, None]
        y: Tensor = kept.sqrt() * x + (1 - kept).sqrt() * self.proj(x)
        return y


class SmallGrid(Model):
    def forward(self, image: Tensor) -> Tensor:
        grid = F.affine_grid(self.theta, [1, 1, 7, 7], align_corners=False)
        return F.grid_sample(image, grid, align_corners=False)


class SoftArgmax(Model):
    def forward(self, heat: Tensor) -> Tensor:
        x = torch.linspace(0, 1, heat.shape[-1])
        return (torch.softmax(heat, -1) * x).sum(-1)


class BigNorm(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:])


class BigNormByHand(Model):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3), keepdim=True)
        variance = x.var((1, 2, 3), keepdim=True, unbiased=False)
        return (x - mean) * torch.rsqrt(variance + 1e-5)


class Squeeze(Model):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.proj(x.mean((2, 3))))[..., None, None]


class Recurrent(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        for step in x.unbind(1):
            h = 0.9 * h + 0.1 * step
        return h


class Boxes(Model):
    def forward(self, x: Tensor) -> Tensor:
        cx, cy, w, h = (100 * self.proj(x).sigmoid()).unbind(-1)
        return torch.stack((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), -1)


class Ratio(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.proj(x)
        return h / (1 + h.abs())


class Pooled(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(F.relu(self.conv(x)), 1).flatten(1)


GOOD: dict[str, tuple[nn.Module, Inputs]] = {
    "rotary, 50 positions": (ShortRotary(inv=_inv()), lambda: (_draw(1, 20, 32),)),
    "sine of a linear": (SineLayer(first=_linear(16, 16)), lambda: (_draw(8, 16),)),
    "learned positions": (
        LearnedPositions(rows=nn.Embedding(900, 16), places=nn.Embedding(700, 16), proj=_linear(16, 16)),
        lambda: (torch.arange(700)[None],),
    ),
    "alibi, 50 positions": (ShortAlibi(), lambda: tuple(0.3 * _draw(1, 50, 16, seed=n) for n in range(3))),
    "pixels": (Pixels(proj=_linear(64, 16)), lambda: (torch.randint(0, 256, (8, 64)).float(),)),
    "counted mean": (
        CountedMean(),
        lambda: (2 + _draw(2, 900, 8), (torch.rand(2, 900) > 0.1).float()),
    ),
    "small ids": (
        SmallIds(rows=_draw(200, 8), proj=_linear(3, 8)),
        lambda: (torch.cat((torch.tensor([[199.0], [3], [150]]), _draw(3, 3)), 1),),
    ),
    "centred variance": (CentredNorm(scale=torch.ones(64)), lambda: (0.5 + _draw(8, 64),)),
    "one pass, no mean": (OnePassWide(scale=torch.ones(64)), lambda: (0.3 + _draw(8, 64),)),
    "residual stream": (
        Residual(layers=nn.ModuleList([_linear(32, 32, seed=n) for n in range(6)])),
        lambda: (_draw(8, 32),),
    ),
    "zero by construction": (Zeros(proj=_linear(32, 32)), lambda: (_draw(8, 32),)),
    "distances of far pairs": (FarPairs(), lambda: (_draw(12, 32), _draw(14, 32, seed=1))),
    "leaky gate": (Gate(proj=_linear(32, 32)), lambda: (_draw(64, 32),)),
    "a far threshold": (Thresholds(proj=_linear(32, 8)), lambda: (_draw(64, 32),)),
    "wide margins": (
        SureArgmax(proj=_linear(8, 8)),
        lambda: (40 * F.one_hot(torch.arange(16) % 8, 8).float(),),
    ),
    "attention": (Attention(qkv=_linear(32, 96)), lambda: (_draw(2, 20, 32),)),
    "classifier": (Classifier(proj=_linear(32, 64), head=_linear(64, 100)), lambda: (_draw(16, 32),)),
    "logits into bce": (WithLogits(head=_linear(8, 1, bias=6.0)), lambda: (_draw(32, 8), torch.ones(32, 1))),
    "mild sigmoid into bce": (MildBce(head=_linear(8, 1)), lambda: (_draw(32, 8), torch.ones(32, 1))),
    "schedule of a forward process": (
        MildSchedule(kept=torch.cumprod(1 - torch.linspace(1e-4, 2e-2, 1000), 0), proj=_linear(8, 8)),
        lambda: (_draw(3, 8), torch.tensor([200, 500, 800])),
    ),
    "a grid of seven pixels": (
        SmallGrid(theta=torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.0]]])),
        lambda: (_draw(1, 1, 7, 7),),
    ),
    "soft argmax": (SoftArgmax(), lambda: (_draw(4, 64),)),
    "norm over many": (BigNorm(), lambda: (_draw(1, 32, 56, 56),)),
    "norm over many by hand": (BigNormByHand(), lambda: (_draw(1, 32, 56, 56),)),
    "squeeze and excite": (Squeeze(proj=_linear(8, 8)), lambda: (_draw(2, 8, 14, 14),)),
    "leaky average": (Recurrent(), lambda: (1 + _draw(4, 30, 8),)),
    "boxes": (Boxes(proj=_linear(16, 4)), lambda: (_draw(32, 16),)),
    "a safe division": (Ratio(proj=_linear(16, 16)), lambda: (_draw(32, 16),)),
    "pooling": (Pooled(conv=nn.Conv2d(3, 8, 3)), lambda: (_draw(2, 3, 32, 32),)),
}


@pytest.mark.parametrize("policy", ["bf16-inference", "fp16-inference"])
@pytest.mark.parametrize("name", sorted(GOOD))
def test_harmless_neighbours_are_left_alone(name: str, policy: str) -> None:
    model, inputs = GOOD[name]
    torch.manual_seed(0)
    made = pa.convert(model.eval(), inputs(), policy=policy, verify=False)
    assert [(one.rule, one.op, one.message) for one in _told(made.report.findings)] == []


class Routed(nn.Module):
    """A body before the router: what it rounds decides as much as what the router rounds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.norm, self.router = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)
        experts = (nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 32)) for _ in range(8))
        self.experts = nn.ModuleList(experts)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.relu(self.body(x)))
        p = self.router(h).softmax(-1)
        v, i = p.topk(2, -1)
        weights = torch.zeros_like(p).scatter(-1, i, v)
        made: Tensor = (torch.stack([expert(h) for expert in self.experts], -1) * weights.unsqueeze(-2)).sum(-1)
        return made


@pytest.mark.parametrize(("width", "kept"), [(128, True), (1, False)])
def test_what_leads_up_to_a_router_is_kept_high_unless_it_is_most_of_the_model(width: int, kept: bool) -> None:
    """Multiply-adds per row: body 1024 and router 256 against 8 * 64 * width in the experts."""
    x = torch.randn(400, 32, generator=torch.Generator().manual_seed(1))
    report = pa.audit(Routed(width).eval(), (x,), policy="bf16-everywhere", device="cpu-amx")
    (finding,) = [each for each in report.findings if each.rule == "PA206" and each.severity != "note"]
    assert finding.op == "/topk#0" and "router/linear#0" in finding.pins
    assert ("body/linear#0" in finding.pins) == kept
    assert report.verification is not None and report.verification.passed == kept
