"""Models that lose their place in fp16 or bf16: positions, angles, coordinates, decisions, tables."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.everywhere.models import Two, model


@model("bf16", kept="add softmax mul rsub")
class MaskOfSixtyThousand(Two):
    def forward(self, x, keep):
        s = (self.a(x) @ self.b(x).transpose(-1, -2)) * 2000.0
        s = s + (1.0 - keep[:, None, :]) * -60000.0  # breaks
        return torch.softmax(s, -1) @ x

    @staticmethod
    def inputs():
        k = torch.ones(2, 8)
        k[0, :] = 0.0
        return (torch.randn(2, 8, 32), k)


@model("fp16 bf16", kept="arange mul outer cos sin cat to unsqueeze einsum pow reciprocal div")
class RotaryByOuter(Two):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv", 1.0 / 10000 ** (torch.arange(0, 32, 2) / 32))

    def forward(self, x):
        t = torch.arange(x.shape[1], dtype=self.inv.dtype)
        f = torch.outer(t, self.inv)  # breaks
        c, s = f.cos(), f.sin()
        q = self.a(x)
        q1, q2 = q[..., :16], q[..., 16:]
        return self.b(torch.cat((q1 * c - q2 * s, q2 * c + q1 * s), -1))

    @staticmethod
    def inputs():
        return (torch.randn(1, 600, 32),)


@model("fp16 bf16", kept="mul sin cos cat unsqueeze exp div")
class SinusoidTimes(Two):
    def forward(self, x, t):
        f = torch.exp(-torch.arange(16, dtype=x.dtype) * 0.5)
        w = t[:, None] * f * 40.0  # breaks
        e = torch.cat((w.sin(), w.cos()), -1)
        return self.b(F.silu(self.a(x) + e))

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.rand(8) * 1000)


@model("fp16 bf16", kept="sigmoid topk sort argsort select mul score squeeze")
class NmsScores(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
        self.score = nn.Linear(32, 1)
        nn.init.constant_(self.score.bias, 6.0)

    def forward(self, x):
        h = self.trunk(x)
        s = torch.sigmoid(self.score(x)).squeeze(-1)  # breaks
        order = s.topk(20).indices  # breaks
        return h, order

    @staticmethod
    def inputs():
        return (torch.randn(400, 32),)


@model("fp16 bf16", kept="cumsum sin")
class LongCumsum(Two):
    def forward(self, x, steps):
        h = self.b(torch.relu(self.a(x)))
        c = torch.cumsum(steps, 0)  # breaks
        return h, torch.sin(c)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.rand(3000))


@model("fp16 bf16", kept="floor remainder long to embedding mul select sub frac round")
class BucketOfValue(Two):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(2001, 32)

    def forward(self, x, v):
        at = (v * 1000.0).floor().long()  # breaks
        return self.b(F.relu(self.a(x))) + self.e(at)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(64, 32), torch.rand(64) * 1.999)


@model("fp16 bf16", kept="cumprod rsub mul sqrt index unsqueeze div sub linspace")
class CosineSchedule(Two):
    def forward(self, x, t):
        beta = torch.linspace(1e-4, 0.02, 1000, dtype=x.dtype)
        bar = torch.cumprod(1.0 - beta, 0)[t][:, None]  # breaks
        return self.h(x) / torch.sqrt(1.0 - bar)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.tensor([0, 1, 2, 3, 5, 8, 13, 500]))


@model("fp16 bf16", kept="arange mul add meshgrid stack unsqueeze view reshape sub exp cat select expand")
class AnchorDecode(Two):
    def forward(self, x, d):
        c = (torch.arange(300, dtype=x.dtype) + 0.5) * 8.0  # breaks
        lo = c[:, None] + d[:, :2] * 8.0 - 4.0  # breaks
        hi = c[:, None] + d[:, 2:] * 8.0 + 4.0
        return self.h(x), hi - lo  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randn(300, 4) * 0.3)


@model("fp16 bf16", kept="mul sin cos cat unsqueeze")
class NerfEncoding(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("f", 2.0 ** torch.arange(10))
        self.m = nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        a = (x[..., None] * self.f * math.pi).flatten(-2)  # breaks
        return self.m(torch.cat((a.sin(), a.cos()), -1))

    @staticmethod
    def inputs():
        return (torch.rand(64, 3) * 2 - 1,)


@model("fp16", kept="arange sub mul abs neg add unsqueeze softmax exp")
class Alibi(Two):
    def forward(self, x):
        p = torch.arange(x.shape[0], dtype=x.dtype)
        b = -(p[:, None] - p[None]).abs() * 0.7
        return torch.softmax(self.a(x) @ self.b(x).T * 0.1 + b, -1) @ p[:, None] - p[:, None], self.a(x)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(700, 32),)


@model("fp16 bf16", kept="log div mul add floor to embedding abs clamp")
class RelativeBucket(Two):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(64, 32)

    def forward(self, x, d):
        k = (torch.log(d / 16.0) / math.log(8.0) * 40.0).long().clamp(0, 63)  # breaks
        return self.h(x) + self.e(k)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(400, 32), 16 + torch.rand(400) * 110)


@model("bf16", kept="cumsum mul sin cos sub unsqueeze to")
class PositionsByMask(Two):
    def forward(self, x, m):
        p = m.cumsum(0) - 1.0  # breaks
        return self.h(x) + torch.sin(p)[:, None]  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(800, 32), torch.ones(800))


@model("fp16 bf16", kept="floor sub mul add unsqueeze frac")
class LinearInterpolation(Two):
    def forward(self, x, t):
        i = t.floor()  # breaks
        f = (t - i)[:, None]  # breaks
        return self.h(x) * f, i.long()

    @staticmethod
    def inputs():
        return (torch.randn(32, 32), torch.rand(32) * 900)


@model("fp16 bf16", kept="fmod remainder floor mul add to embedding")
class HashedIds(Two):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(97, 32)

    def forward(self, x, ids):
        k = torch.remainder(ids * 31.0, 97.0).long()  # breaks
        return self.h(x) + self.e(k)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(64, 32), torch.randint(0, 1500, (64,)).float())
