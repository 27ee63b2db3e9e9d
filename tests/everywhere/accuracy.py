"""Models that lose their digits in fp16 or bf16: differences of nearly equal numbers, what amplifies an error."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.everywhere.models import Two, model


@model("fp16 bf16", kept="pow mean sub mul sqrt add")
class VarianceByMoments(Two):
    def forward(self, x):
        h = self.a(x) + 100.0
        m = h.mean(-1, keepdim=True)
        v = (h * h).mean(-1, keepdim=True) - m * m  # breaks
        return self.b(F.gelu(x)), v


@model("fp16 bf16", kept="sub pow sum sqrt add unsqueeze")
class DistanceOfNear(Two):
    def forward(self, x, p, q):
        d = torch.sqrt(((p[:, None] - q[None]) ** 2).sum(-1) + 1e-6)  # breaks
        return self.b(torch.relu(self.a(x))), d

    @staticmethod
    def inputs():
        p = torch.randn(8, 3) + 500
        return (torch.randn(8, 32), p, p + 0.2 * torch.randn(8, 3))


@model("fp16 bf16", kept="sigmoid log rsub pow mul neg sub log1p")
class FocalByHand(Two):
    def forward(self, x, t):
        p = torch.sigmoid(self.a(x) + 9.0)
        loss = -(1 - t) * p**2 * torch.log(1 - p + 1e-7)  # breaks
        return self.b(x), loss

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.zeros(8, 32))


@model("fp16 bf16", kept="log neg rand clamp add sub softmax sigmoid")
class GumbelTop(Two):
    def forward(self, x, u):
        g = -torch.log(-torch.log(u))  # breaks
        return self.b(torch.softmax(self.a(x) + g, -1))

    @staticmethod
    def inputs():
        u = torch.rand(8, 32)
        u[:, 0] = 1 - 1e-5
        u[0, 1] = 1e-9
        return (torch.randn(8, 32), u)


@model("fp16 bf16", kept="sub div mul unsqueeze")
class FiniteDifference(Two):
    def forward(self, x, u):
        d = (u[:, 1:] - u[:, :-1]) / 0.01  # breaks
        return self.b(F.relu(self.a(x))), d

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), 1.0 + torch.cumsum(torch.randn(8, 64) * 0.002, -1))


@model("fp16 bf16", kept="mul add sub div sqrt")
class QuadraticRoots(Two):
    def forward(self, x, b, c):
        r = (b - torch.sqrt(b * b - 4.0 * c)) * 0.5  # breaks
        return self.b(F.relu(self.a(x))), r

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), 20 + torch.rand(8), 1 + torch.rand(8))


@model("fp16 bf16", kept="mul add sub")
class SlowAverage(Two):
    def forward(self, x, mean, new):
        for _ in range(3):
            mean = 0.9995 * mean + 0.0005 * new  # breaks
        return self.h(x), mean - new  # breaks

    @staticmethod
    def inputs():
        n = torch.randn(8, 32) + 40
        return (torch.randn(8, 32), n + 0.05 * torch.randn(8, 32), n)


@model("fp16 bf16", kept="sum mul sub add sqrt pow neg")
class RaySphere(Two):
    def forward(self, x, o, d):
        b = (o * d).sum(-1)
        c = (o * o).sum(-1) - 1.0
        return self.h(x), torch.sqrt((b * b - c).clamp(min=0)) - b  # breaks

    @staticmethod
    def inputs():
        d = F.normalize(torch.randn(8, 3), dim=-1)
        o = -d * 30 + 0.3 * F.normalize(torch.randn(8, 3), dim=-1)
        return (torch.randn(8, 32), o, d)


@model("fp16 bf16", kept="sum mul acos clamp sub")
class AngleOfNear(Two):
    def forward(self, x, u, v):
        return self.h(x), torch.acos((u * v).sum(-1).clamp(-1, 1))  # breaks

    @staticmethod
    def inputs():
        u = F.normalize(torch.randn(8, 3), dim=-1)
        v = F.normalize(u + 0.02 * torch.randn(8, 3), dim=-1)
        return (torch.randn(8, 32), u, v)


@model("fp16 bf16", kept="sum pow sub mul matmul")
class FactorizationMachine(Two):
    def forward(self, x, e):
        s = e.sum(1).pow(2) - e.pow(2).sum(1)  # breaks
        return self.h(x), s

    @staticmethod
    def inputs():
        e = torch.zeros(8, 20, 32)
        e[:, 0] = 12 + torch.randn(8, 32)
        e[:, 1] = 0.01 * torch.rand(8, 32)
        return (torch.randn(8, 32), e)


@model("fp16 bf16", kept="sub log1p exp expm1 neg log")
class SurvivalLog(Two):
    def forward(self, x, h):
        s = torch.exp(-h)
        return self.h(x), torch.log(1.0 - s)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), 0.001 + 0.01 * torch.rand(8, 4))


@model("fp16 bf16", kept="var var_mean sub mean sqrt std")
class VarOfLargeMean(Two):
    def forward(self, x, s):
        return self.h(x), torch.var(s * 1.5 + 100.0, -1)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randn(8, 64) * 0.05)


@model("fp16 bf16", kept="logsumexp add amax sub exp log unsqueeze sum")
class CrfForward(Two):
    def forward(self, x, e, t):
        a = e[0]
        for i in range(1, 24):
            a = torch.logsumexp(a[:, None] + t, 0) + e[i]  # breaks
        return self.h(x), a - torch.logsumexp(a, 0)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randn(24, 6), torch.randn(6, 6))


@model("fp16 bf16", kept="mul add tanh sub atanh artanh log1p div norm sum sqrt linalg_vector_norm clamp rsub")
class PoincareDistance(Two):
    def forward(self, x, u, v):
        d = (u - v).pow(2).sum(-1)
        q = 1 + 2 * d / ((1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1)))  # breaks
        return self.h(x), torch.acosh(q)  # breaks

    @staticmethod
    def inputs():
        u = F.normalize(torch.randn(8, 4), dim=-1) * 0.9995
        v = F.normalize(u + 0.02 * torch.randn(8, 4), dim=-1) * 0.9995
        return (torch.randn(8, 32), u, v)
