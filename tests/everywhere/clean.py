"""Models that run in fp16 and bf16 as they are: nothing may be said of them, and nothing kept in fp32."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.everywhere.models import Two, model


@model()
class CleanNorms(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.LayerNorm(32)
        self.g = nn.GroupNorm(4, 32)
        self.a = nn.Linear(32, 64)
        self.b = nn.Linear(64, 32)

    def forward(self, x):
        return self.b(F.gelu(self.a(self.n(x)))) + self.g(x)

    inputs = staticmethod(lambda: (torch.randn(8, 32),))


@model()
class CleanAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        return x + self.m(x, x, x, need_weights=False)[0]

    @staticmethod
    def inputs():
        return (torch.randn(2, 8, 32),)


@model()
class CleanMaskInf(Two):
    def forward(self, x):
        s = self.a(x) @ self.b(x).T / 32**0.5
        s = s.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), float("-inf"))
        return torch.softmax(s, -1) @ x


@model()
class CleanConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 10),
        )

    def forward(self, x):
        return self.s(x)

    @staticmethod
    def inputs():
        return (torch.randn(2, 3, 24, 24),)


@model()
class CleanRmsNorm(Two):
    def forward(self, x):
        h = self.a(x)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.b(h)


@model()
class CleanSoftmaxByHand(Two):
    def forward(self, x):
        s = self.a(x)
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return self.b(e / e.sum(-1, keepdim=True))


@model()
class CleanGate(Two):
    def forward(self, x):
        return self.b(torch.sigmoid(self.a(x)) * torch.tanh(x)) + x


@model()
class CleanEmbeddingLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(50, 32)
        self.p = nn.Embedding(16, 32)
        self.n = nn.LayerNorm(32)
        self.o = nn.Linear(32, 50)

    def forward(self, ids):
        h = self.e(ids) + self.p(torch.arange(ids.shape[1]))
        return F.log_softmax(self.o(F.relu(self.n(h))), -1)

    @staticmethod
    def inputs():
        return (torch.randint(0, 50, (2, 16)),)


@model()
class CleanRelativeDistance(Two):
    def forward(self, x, y):
        d = ((self.a(x) - self.b(y)) ** 2).sum(-1)
        return torch.exp(-d / 64)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randn(8, 32))


@model()
class CleanLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.GRU(16, 16, batch_first=True)
        self.o = nn.Linear(16, 4)

    def forward(self, x):
        return self.o(self.r(x)[0][:, -1])

    @staticmethod
    def inputs():
        return (torch.randn(2, 5, 16),)


@model()
class CleanPositions(Two):
    def forward(self, x):
        t = torch.arange(x.shape[0], dtype=x.dtype)[:, None] / x.shape[0]
        return self.b(F.relu(self.a(x) + torch.sin(t * 3.0)))


@model()
class CleanVit(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Conv2d(3, 32, 8, 8)
        self.c = nn.Parameter(torch.randn(1, 1, 32) * 0.02)
        self.pos = nn.Parameter(torch.randn(1, 17, 32) * 0.02)
        self.l = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.o = nn.Linear(32, 10)

    def forward(self, x):
        h = self.p(x).flatten(2).transpose(1, 2)
        h = torch.cat((self.c.expand(len(x), -1, -1), h), 1) + self.pos
        return self.o(self.l(h)[:, 0])

    @staticmethod
    def inputs():
        return (torch.randn(2, 3, 32, 32),)


@model()
class CleanUnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(1, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.g = nn.GroupNorm(4, 16)
        self.c = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x):
        h = F.silu(self.a(x))
        d = F.silu(self.g(self.b(h)))
        return self.c(torch.cat((h, F.interpolate(d, scale_factor=2, mode="bilinear")), 1))

    @staticmethod
    def inputs():
        return (torch.randn(1, 1, 16, 16),)


@model()
class CleanMoeGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Linear(32, 4)
        self.e = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        w = torch.softmax(self.g(x), -1)
        return sum(w[:, i : i + 1] * e(x) for i, e in enumerate(self.e))

    inputs = staticmethod(lambda: (torch.randn(8, 32),))


@model()
class CleanSwiGlu(Two):
    def forward(self, x):
        return x + F.silu(self.a(x)) * self.b(x)


@model()
class CleanMinusTenThousand(Two):
    def forward(self, x, m):
        s = self.a(x) @ self.b(x).transpose(-1, -2) / 32**0.5 + (1 - m[:, None]) * -10000.0
        return torch.softmax(s, -1) @ x

    @staticmethod
    def inputs():
        m = torch.ones(2, 8)
        m[0, 5:] = 0
        return (torch.randn(2, 8, 32), m)


@model()
class CleanRotaryShort(Two):
    def __init__(self):
        super().__init__()
        self.register_buffer("c", torch.cos(torch.arange(16)[:, None] * 0.5 ** torch.arange(16)))
        self.register_buffer("s", torch.sin(torch.arange(16)[:, None] * 0.5 ** torch.arange(16)))

    def forward(self, x):
        q = self.a(x)
        u, v = q[..., :16], q[..., 16:]
        return self.b(torch.cat((u * self.c - v * self.s, v * self.c + u * self.s), -1))

    @staticmethod
    def inputs():
        return (torch.randn(2, 16, 32),)


@model()
class CleanVarianceCentred(Two):
    def forward(self, x):
        h = self.a(x)
        c = h - h.mean(-1, keepdim=True)
        return self.b(c / torch.sqrt((c * c).mean(-1, keepdim=True) + 1e-5))


@model()
class CleanArgmaxLike(Two):
    def forward(self, x):
        return self.b(F.max_pool1d(self.a(x)[:, None], 2)[:, 0].repeat(1, 2)), F.softplus(self.a(x))


@model()
class CleanIntegers(Two):
    def forward(self, x, k):
        return self.h(x) * k[:, None] + torch.arange(32, dtype=x.dtype) * 0.125

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.arange(8.0))


@model()
class CleanDegree(Two):
    def forward(self, x, adj):
        d = adj.sum(-1)
        inv = d.pow(-0.5)
        inv = inv.masked_fill(inv == float("inf"), 0.0)
        return self.h(inv[:, None] * adj @ x)

    @staticmethod
    def inputs():
        a = (torch.rand(8, 8) > 0.5).float()
        a[3] = 0
        return (torch.randn(8, 32), a)


@model(kept="arange pow div mul sin unsqueeze neg")
class CleanAnglesInTheDefaultFormat(Two):
    """What the code makes in fp32 stays so in a model that is cast."""

    def forward(self, x):
        place = torch.arange(0, 900, dtype=torch.float32)
        wave = torch.sin(place[:, None] * 100.0 ** -(torch.arange(32) / 32)).to(x.dtype)
        return self.h(x + wave)

    @staticmethod
    def inputs():
        return (torch.randn(900, 32),)
