"""Models that lose their digits in fp16 or bf16: differences of nearly equal numbers, what amplifies an error."""

from __future__ import annotations

import torch
from torch import nn
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


@model("fp16 bf16", kept="linspace meshgrid stack add grid_sampler unsqueeze mul")
class CoordinateFlowWarp(nn.Module):
    def __init__(self):
        super().__init__()
        self.feat = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, img, flow):
        h, w = img.shape[-2:]
        ys = torch.linspace(-1, 1, h, dtype=img.dtype)
        xs = torch.linspace(-1, 1, w, dtype=img.dtype)
        gy, gx = torch.meshgrid(ys, xs, indexing="ij")
        base = torch.stack([gx, gy], -1)[None]
        warped = F.grid_sample(img, base + flow * (2.0 / w), align_corners=True, padding_mode="border")  # breaks
        return warped, self.feat(img[..., :8, :8])

    @staticmethod
    def inputs():
        return torch.rand(1, 3, 96, 160), torch.randn(1, 96, 160, 2) * 0.3


@model("fp16 bf16", kept="bucketize")
class DecisionBucketIndex(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.arange(1, 64) * 0.5 + 300.1)
        self.emb = nn.Embedding(64, 8)
        self.lin = nn.Linear(20, 8)

    def forward(self, price):
        b = torch.bucketize(price, self.edges)  # breaks
        return self.emb(b), self.lin(price / 320)

    @staticmethod
    def inputs():
        return (300 + 32 * torch.rand(5, 20),)


@model("fp16 bf16", kept="pow arange to mul sum")
class AmplifyDiscountPower(Two):
    def __init__(self):
        super().__init__()
        self.register_buffer("gamma", torch.tensor(0.9982))

    def forward(self, x, reward):
        k = torch.arange(reward.shape[1]).to(x.dtype)
        disc = torch.pow(self.gamma, k)  # breaks
        return (disc * reward).sum(-1), self.h(x)

    @staticmethod
    def inputs():
        return torch.randn(8, 32), torch.rand(5, 200)


@model("fp16 bf16", kept="neg exp rsub mul softplus")
class CancelAlphaCompositing(nn.Module):
    def __init__(self):
        super().__init__()
        self.sigma, self.rgb = nn.Linear(9, 1), nn.Linear(9, 3)

    def forward(self, pts):
        s = F.softplus(self.sigma(pts)) * 2e-3
        alpha = 1.0 - torch.exp(-s)  # breaks
        return (alpha * torch.sigmoid(self.rgb(pts))).sum(-2) * 100

    @staticmethod
    def inputs():
        return (torch.randn(4, 12, 9),)


@model("fp16 bf16", kept="linalg_vector_norm clamp_min expand_as div einsum softmax linear")
class AmplifyContrastiveTemperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.img, self.txt = nn.Linear(24, 24), nn.Linear(24, 24)
        self.tau = 0.002
        self.aux = nn.Linear(24, 2)

    def forward(self, a, b):
        i = F.normalize(self.img(a), dim=-1)
        t = F.normalize(self.txt(b), dim=-1)
        sim = torch.einsum("nd,md->nm", i, t)  # breaks
        return (sim / self.tau).softmax(-1), 0.1 * self.aux(torch.tanh(a))  # breaks

    @staticmethod
    def inputs():
        a = torch.randn(16, 24)
        return 3 + 0.5 * a, 3 + 0.5 * a.roll(3, 0)


@model("fp16 bf16", kept="mul sub add stack")
class AmplifyUnstableRecurrence(nn.Module):
    """x[k+1] = 5/2 x[k] - x[k-1] started on its decaying branch: rounding starts the growing one."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x):
        p, q = x, 0.5 * x + 0.0
        r = self.lin(x) * 0.01
        c = torch.tensor(0.3, dtype=x.dtype) / 3
        p, q = p * c, q * c
        out = []
        for _ in range(12):
            p, q = q, 2.5 * q - p  # breaks
            out.append(q)
        return torch.stack(out), r * 0.01

    @staticmethod
    def inputs():
        return (torch.randn(5, 6),)
