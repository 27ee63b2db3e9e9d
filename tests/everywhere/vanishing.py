"""Models that lose an eps, a square or a probability that rounds to zero or to one."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.everywhere.models import Two, model


@model("fp16 bf16", kept="softmax log prod gather mul sum")
class LogOfProbability(Two):
    def forward(self, x):
        p = torch.softmax(self.a(x) * 12.0, -1)
        return self.b(x), torch.log(p)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 3,)


@model("fp16", kept="sub mean pow sum div sqrt std add mul")
class InstanceNormTinyEps(Two):
    def forward(self, x):
        h = F.relu(self.a(x))
        h = h - h.mean(-1, keepdim=True)
        n = h.pow(2).mean(-1, keepdim=True).sqrt()
        return self.b(h / (n + 1e-9))  # breaks

    @staticmethod
    def inputs():
        x = torch.randn(8, 32)
        return (x,)

    def prepare(self):
        with torch.no_grad():
            self.a.bias.fill_(-50.0)


@model("fp16", kept="exp div sum log add neg mul unsqueeze sub pow sqrt")
class Sinkhorn(Two):
    def forward(self, x, cost):
        k = torch.exp(-cost / 0.05)  # breaks
        u = torch.ones(8, dtype=x.dtype)
        for _ in range(3):
            v = 1.0 / (k.T @ u)  # breaks
            u = 1.0 / (k @ v)  # breaks
        return self.h(x), u[:, None] * k * v[None]

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), 0.8 + 0.4 * torch.rand(8, 8))


@model("fp16", kept="softmax gather log neg squeeze mean add mul")
class CrossEntropyByHand(Two):
    def forward(self, x, y):
        p = torch.softmax(self.a(x) * 14.0, -1)
        return self.b(x), -torch.log(p.gather(1, y[:, None]) + 1e-12)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 3, torch.randint(0, 32, (8,)))


@model("fp16", kept="where div abs lt")
class GuardedDivision(Two):
    def forward(self, x, d):
        s = torch.where(d.abs() < 1e-8, torch.full_like(d, 1e-8), d)  # breaks
        return self.h(x), (d * 0.5) / s  # breaks

    @staticmethod
    def inputs():
        d = torch.randn(8, 4)
        d[0] = 0
        return (torch.randn(8, 32), d)


@model("fp16 bf16", kept="pow mean log10 reciprocal mul rdiv div sub log")
class Psnr(Two):
    def forward(self, x, y, z):
        mse = (y - z).pow(2).mean()  # breaks
        return self.h(x), 10.0 * torch.log10(1.0 / mse)

    @staticmethod
    def inputs():
        y = torch.rand(8, 32)
        return (torch.randn(8, 32), y, y + 1e-4 * torch.randn(8, 32))


@model("fp16", kept="mul add sqrt pow")
class Charbonnier(Two):
    def forward(self, x, r):
        return self.h(x), torch.sqrt(r * r + 1e-12)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randn(8, 8) * 1e-4)


@model("fp16", kept="pow mean add rsqrt mul")
class RmsOfSmall(Two):
    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-12)  # breaks
        return self.h(x)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 1e-5,)


@model("fp16", kept="mul sum exp softmax log sub amax neg add")
class EntropyByHand(Two):
    def forward(self, x):
        p = torch.softmax(self.a(x) * 4.0, -1)
        return self.b(x), -(p * torch.log(p)).sum(-1)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 4,)


@model("fp16", kept="batch_norm mul")
class BufferRunningVarianceTiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv1d(4, 4, 3, padding=1)
        self.n = nn.BatchNorm1d(4, eps=1e-10)
        self.f = nn.Linear(20, 6)

    def prepare(self):
        self.n.running_var.fill_(4e-8)

    def forward(self, s):
        return self.f(self.n(2e-4 * s) + self.c(s))  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(3, 4, 20),)
