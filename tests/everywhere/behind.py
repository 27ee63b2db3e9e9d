"""Models in which the first remedy is not enough: another error lies behind it, or many small ones beside it."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.everywhere.models import model


@model("fp16 bf16", kept="pow mul einsum tril arange unsqueeze")
class RetentionDecayMask(nn.Module):
    def __init__(self, heads=8, d=8):
        super().__init__()
        self.register_buffer("gamma", 1 - 2.0 ** (-6 - torch.arange(heads, dtype=torch.float32)))
        self.v, self.side = nn.Linear(d, heads), nn.Linear(d, 4)

    def forward(self, x):
        n = torch.arange(x.shape[0])
        dist = (n[:, None] - n[None, :]).clamp(min=0)
        D = torch.pow(self.gamma[:, None, None], dist) * torch.ones(len(n), len(n), dtype=x.dtype).tril()  # breaks
        return torch.einsum("hij,jh->ih", D, torch.sigmoid(self.v(x))) / 50, self.side(x) * 0.1

    @staticmethod
    def inputs():
        return (torch.randn(160, 8),)


@model("fp16", kept="mul add pow div sub select stack")
class PcenOfQuietRoom(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.side = nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, mag):
        e = (mag * 1e-2) ** 2  # breaks
        m = e[:, 0]
        smooth = [m]
        for t in range(1, e.shape[1]):
            m = 0.975 * m + 0.025 * e[:, t]  # breaks
            smooth.append(m)
        s = torch.stack(smooth, 1)
        y = (e / (1e-6 + s) ** 0.98 + 2.0) ** 0.5 - 2.0**0.5  # breaks
        return self.head(y), self.side(mag)

    @staticmethod
    def inputs():
        return (torch.rand(2, 10, 8) * 0.2,)


@model("fp16 bf16", kept="add mul tanh rsub abs log linear mv unsqueeze")
class PlanarFlowDeterminant(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.base = nn.Linear(d, d)
        self.w, self.b = nn.Parameter(torch.randn(d)), nn.Parameter(torch.zeros(1))
        self.u = nn.Parameter(torch.zeros(d))

    def prepare(self):
        self.w.copy_(torch.randint(1, 4, (8,)) / 2)
        self.u.copy_(-0.998 * self.w / self.w.dot(self.w))

    def forward(self, x):
        z = self.base(x) * 0.02
        h = torch.tanh(torch.mv(z, self.w) + self.b)
        psi = (1 - h * h)[:, None] * self.w
        det = 1 + torch.mv(psi, self.u)  # breaks
        return torch.log(det.abs()), z * 10

    @staticmethod
    def inputs():
        return (torch.randn(12, 8),)


@model("fp16 bf16", kept="log_softmax exp sub mul sum linear")
class DistillationFromTwin(nn.Module):
    def __init__(self, d=12, v=9):
        super().__init__()
        self.student, self.teacher = nn.Linear(d, v), nn.Linear(d, v)

    def prepare(self):
        self.teacher.weight.copy_(self.student.weight + 0.01 * torch.randn(v := 9, 12))
        self.teacher.bias.copy_(self.student.bias + 0.01 * torch.randn(v))

    def forward(self, x):
        p, q = F.log_softmax(self.teacher(x), -1), F.log_softmax(self.student(x), -1)
        gap = p - q  # breaks
        return 1e3 * (p.exp() * gap).sum(-1)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(10, 12),)


@model("fp16 bf16", kept="sub sin pow mul cos add sqrt asin div unsqueeze select")
class HaversineOfTaxiTrips(nn.Module):
    def __init__(self):
        super().__init__()
        self.fare, self.day = nn.Linear(1, 4), nn.Linear(3, 4)

    def forward(self, a, b, cal):
        pa, pb = a * (math.pi / 180), b * (math.pi / 180)
        d = pb - pa  # breaks
        h = (
            torch.sin(d[:, 0] / 2) ** 2 + torch.cos(pa[:, 0]) * torch.cos(pb[:, 0]) * torch.sin(d[:, 1] / 2) ** 2
        )  # breaks
        km = 12742 * torch.asin(torch.sqrt(h))
        return self.fare(km[:, None]) + 0.1 * self.day(cal)

    @staticmethod
    def inputs():
        a = torch.tensor([40.75, -73.98]) + 0.02 * torch.randn(12, 2)
        return a, a + 0.02 * torch.randn(12, 2), torch.randn(12, 3)
