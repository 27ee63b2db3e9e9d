"""Models that leave the range of fp16: squares, products, scores, residual streams."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.everywhere.models import Two, model


@model("fp16", kept="pow mean var sub add rsqrt mul div sqrt view reshape")
class GroupNormByHand(Two):
    def forward(self, x):
        h = self.a(x) * 300.0
        g = h.view(8, 4, 8)
        m = g.mean(-1, keepdim=True)
        v = ((g - m) ** 2).mean(-1, keepdim=True)  # breaks
        g = (g - m) / torch.sqrt(v + 1e-5)
        return self.b(g.reshape(8, 32))


@model("fp16", kept="mul sum sqrt clamp div clamp_min")
class CosineByHand(Two):
    def forward(self, x, y):
        u, v = self.a(x), self.b(y)
        num = (u * v).sum(-1)  # breaks
        den = torch.sqrt((u * u).sum(-1)) * torch.sqrt((v * v).sum(-1))  # breaks
        return num / den.clamp_min(1e-4)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 200, torch.randn(8, 32) * 200)


@model("fp16", kept="sub mul add div clamp minimum maximum clamp_min prod select")
class BoxIoU(Two):
    def forward(self, x, p, q):
        wa = (p[:, 2] - p[:, 0]) * (p[:, 3] - p[:, 1])  # breaks
        wb = (q[:, 2] - q[:, 0]) * (q[:, 3] - q[:, 1])  # breaks
        lt = torch.maximum(p[:, None, :2], q[None, :, :2])
        rb = torch.minimum(p[:, None, 2:], q[None, :, 2:])
        wh = (rb - lt).clamp(min=0)
        inter = wh[..., 0] * wh[..., 1]  # breaks
        return self.b(F.relu(self.a(x))), inter / (wa[:, None] + wb[None] - inter)

    @staticmethod
    def inputs():
        xy = torch.rand(6, 2) * 100
        wh = 300 + torch.rand(6, 2) * 500
        p = torch.cat((xy, xy + wh), 1)
        q = p + torch.rand(6, 4) * 40
        return (torch.randn(8, 32), p, q)


@model("fp16", kept="matmul softmax mul div transpose bmm")
class AttentionNoScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        s = torch.matmul(self.q(x), self.k(x).transpose(-1, -2))  # breaks
        return torch.matmul(torch.softmax(s * 1e-3, -1), self.v(x))

    @staticmethod
    def inputs():
        return (torch.randn(2, 16, 64) * 120,)


@model("fp16", kept="mv matmul norm div linalg_vector_norm clamp_min")
class PowerIteration(Two):
    def forward(self, x, w):
        v = torch.ones(32, dtype=x.dtype)
        for _ in range(4):
            v = w @ v  # breaks
        s = v.norm()  # breaks
        return self.b(self.a(x)) / s.clamp_min(1.0)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.rand(32, 32) * 3)


@model("fp16", kept="add layers.6 layers.7 layer_norm")
class DeepResidual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))
        self.norm = nn.LayerNorm(32)
        with torch.no_grad():
            for each in self.layers:
                each.weight.copy_(torch.eye(32) * 3)
        self.out = nn.Linear(32, 256)

    def forward(self, x):
        for each in self.layers:
            x = x + each(x)  # breaks
        return self.out(self.norm(x))

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 3,)


@model("fp16 bf16", kept="sum pow mul sub div sqrt rsub")
class OnePassStd(Two):
    def forward(self, x, series):
        n = series.shape[-1]
        s1 = series.sum(-1)
        s2 = (series * series).sum(-1)  # breaks
        std = torch.sqrt((s2 - s1 * s1 / n) / (n - 1))  # breaks
        return self.b(F.relu(self.a(x))), std

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), 40 + torch.randn(8, 100))


@model("fp16", kept="prod cumprod mul")
class ProductOfMany(Two):
    def forward(self, x, f):
        w = torch.prod(f, -1)  # breaks
        return self.b(F.relu(self.a(x))) * w[:, None]

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), 1.8 + 0.2 * torch.rand(8, 20))


@model("fp16", kept="mean sub pow add sqrt div mul")
class LayerNorm2d(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 16, 3, padding=1)
        self.d = nn.Conv2d(16, 16, 3, padding=1)
        self.e = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        h = self.c(x)
        m = h.mean(1, keepdim=True)
        s = (h - m).pow(2).mean(1, keepdim=True)  # breaks
        h = (h - m) / torch.sqrt(s + 1e-6)
        return self.e(F.gelu(self.d(h)))

    @staticmethod
    def inputs():
        return (torch.rand(1, 3, 16, 16) * 2000,)


@model("fp16 bf16", kept="sub div pow exp mul sum add neg unsqueeze")
class SoftBinning(Two):
    def forward(self, x, v):
        c = torch.linspace(0, 1, 16, dtype=x.dtype)
        z = (v[:, None] - c) / 0.003  # breaks
        w = torch.exp(-0.5 * z.pow(2))  # breaks
        return self.h(x), w

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.linspace(0, 1, 16)[:8] + 0.002 * torch.randn(8))


@model("fp16", kept="batch_norm")
class HugeRunningVariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 8, 3)
        self.n = nn.BatchNorm2d(8)
        self.d = nn.Conv2d(8, 8, 3)

    def prepare(self):
        with torch.no_grad():
            self.n.running_var.fill_(3e5)
            self.n.running_mean.fill_(10.0)

    def forward(self, x):
        return self.d(F.relu(self.n(self.c(x))))  # breaks

    @staticmethod
    def inputs():
        return (torch.rand(1, 3, 12, 12) * 500,)


@model("fp16", kept="mul sum div add sub exp")
class MixtureDensity(Two):
    def forward(self, x, y):
        mu = self.a(x)
        q = (y - mu) / 0.002  # breaks
        return self.b(x), torch.tanh((q * q).mean(-1) * 1e-6)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randn(8, 32))


@model("fp16", kept="pow mul div sqrt add prod")
class GeometricMean(Two):
    def forward(self, x, v):
        return self.h(x), v.prod(-1).pow(1 / 6)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), 20 + torch.rand(8, 6))


@model("fp16", kept="pow mean rsqrt add mul arange outer cos sin where full triu masked_fill softmax o")
class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(32, 96, bias=False), nn.Linear(96, 32, bias=False)
        self.w1 = nn.Parameter(torch.ones(32))
        self.w2 = nn.Parameter(torch.ones(32))

    def prepare(self):
        with torch.no_grad():
            self.o.weight[5] *= 20000

    def norm(self, x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w  # breaks

    def forward(self, x):
        h = self.norm(x, self.w1)
        s = self.q(h) @ self.k(h).transpose(-1, -2) / 32**0.5
        mask = torch.triu(torch.full((16, 16), torch.finfo(x.dtype).min, dtype=x.dtype), 1)
        x = x + self.o(torch.softmax(s + mask, -1) @ self.v(h))
        h = self.norm(x, self.w2)
        return self.down(F.silu(self.up(h))), h

    @staticmethod
    def inputs():
        return (torch.randn(2, 16, 32),)


@model("fp16", kept="sum mul softmax arange view linspace meshgrid sub")
class SoftArgmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(1, 16, 3, padding=1)
        self.d = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x):
        h = self.d(F.relu(self.c(x)))
        p = torch.softmax(h.flatten(2) * 4.0, -1)
        at = torch.arange(4096, dtype=x.dtype)
        m = (p * at).sum(-1)
        return h, torch.sqrt((p * at * at).sum(-1) - m * m)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(1, 1, 64, 64),)


@model("fp16", kept="div mul clamp reciprocal add")
class DepthFromDisparity(Two):
    def forward(self, x):
        d = torch.sigmoid(self.a(x)) * 1e-4
        depth = 1000.0 / (d + 1e-7)  # breaks
        return self.b(torch.log(depth))  # breaks


@model("fp16", kept="cumsum mul div sum")
class LinearAttention(Two):
    def forward(self, x):
        k = F.elu(self.a(x)) + 1
        v = self.b(x)
        n = torch.cumsum(k[..., None] * v[..., None, :], 1)  # breaks
        z = torch.cumsum(k, 1)
        return (n * k[..., None]).sum(-2) / ((k * z).sum(-1, keepdim=True))

    @staticmethod
    def inputs():
        return (torch.randn(1, 300, 32) * 120,)
