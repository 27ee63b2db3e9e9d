"""Models whose exponentials and sums leave the range of fp16."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.everywhere.models import Two, model


@model("fp16", kept="exp sum log")
class LogSumExpByHand(Two):
    def forward(self, x):
        s = self.a(x) * 8.0
        return self.b(x), torch.log(torch.exp(s).sum(-1))  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 3,)


@model("fp16", kept="exp sum div mul")
class SoftmaxByHand(Two):
    def forward(self, x):
        e = torch.exp(self.a(x) * 9.0)  # breaks
        p = e / e.sum(-1, keepdim=True)
        return self.b(p)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 3,)


@model("fp16", kept="exp log1p log add")
class SoftplusByHand(Two):
    def forward(self, x):
        y = torch.log(1 + torch.exp(self.a(x) * 10.0))  # breaks
        return self.b(y * 0.01)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 3,)


@model("fp16", kept="mul add div exp neg sigmoid")
class SigmoidByHand(Two):
    def forward(self, x):
        h = self.a(x)
        e = torch.exp(h * 6.0)  # breaks
        return self.b(e / (1.0 + e))

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 4,)


@model("fp16", kept="sum mul div")
class MaskedMeanLarge(Two):
    def forward(self, x, m):
        h = self.a(x) + 200.0
        s = (h * m[..., None]).sum(1)  # breaks
        return self.b(s / m.sum(1, keepdim=True))

    @staticmethod
    def inputs():
        return (torch.randn(2, 600, 32), torch.ones(2, 600))


@model("fp16 bf16", kept="exp mul add sub pow div sum neg")
class GaussianKl(Two):
    def forward(self, x):
        mu, lv = self.a(x), self.b(x) * 20.0
        kl = 0.5 * (mu.pow(2) + lv.exp() - 1.0 - lv).sum(-1)  # breaks
        return mu, kl

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 2,)


@model("fp16", kept="sum mean mul div sub sqrt clamp pow add var")
class SumOfMoments(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv1d(1, 8, 5, padding=2)
        self.d = nn.Conv1d(8, 8, 5, padding=2)

    def forward(self, x):
        h = self.c(x)
        e = (h * h).sum((1, 2), keepdim=True)  # breaks
        return self.d(h) / e.sqrt() * 100.0

    @staticmethod
    def inputs():
        return (torch.randn(2, 1, 2048) * 8,)


@model("fp16 bf16", kept="exp mul add pow sub sum div clamp b")
class Vae(Two):
    def forward(self, x, e):
        mu, lv = self.a(x), self.b(x) * 12.0
        z = mu + torch.exp(0.5 * lv) * e
        kl = (lv.exp() + mu * mu - 1 - lv).sum()  # breaks
        return torch.tanh(z), kl

    @staticmethod
    def inputs():
        return (torch.randn(8, 32) * 3, torch.randn(8, 32))


@model("fp16", kept="exp logsumexp sum log mul div matmul linalg_vector_norm clamp_min expand_as")
class Contrastive(Two):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.6052))

    def forward(self, x, y):
        u, v = F.normalize(self.a(x), dim=-1), F.normalize(self.b(y), dim=-1)
        s = u @ v.T * self.scale.exp()
        return self.h(x), torch.exp(s).sum(-1).log()  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randn(8, 32))

    def prepare(self):
        with torch.no_grad():
            self.b.weight.copy_(self.a.weight)
            self.b.bias.copy_(self.a.bias)


@model("fp16", kept="exp sum div sub amax")
class SoftmaxOverMany(Two):
    def forward(self, x, s):
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return self.h(x), e / e.sum(-1, keepdim=True)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.rand(1, 90000) * 0.1)
