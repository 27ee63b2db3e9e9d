"""Models that raise when they are cast, or whose low kernels are wrong: linear algebra, complex, mixed formats."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.everywhere.models import Two, model


@model("fp16 bf16", kept="linalg_cholesky cholesky_solve cholesky matmul add mul diag_embed eye")
class GaussianProcess(Two):
    def forward(self, x, y):
        h = torch.tanh(self.a(x))
        k = h @ h.T + 0.5 * torch.eye(8, dtype=x.dtype)
        chol = torch.linalg.cholesky(k)  # breaks
        return torch.cholesky_solve(y, chol).T @ self.b(x)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randn(8, 2))


@model("fp16 bf16", kept="_fft_r2c fft_rfft fft_irfft _fft_c2r mul view_as_complex fft_rfft2")
class FourierMixing(Two):
    def forward(self, x):
        h = self.a(x)
        f = torch.fft.rfft(h, dim=-1)  # breaks
        return self.b(F.gelu(torch.fft.irfft(f * 0.5, n=32, dim=-1)))

    @staticmethod
    def inputs():
        return (torch.randn(8, 32),)


@model("fp16 bf16", kept="lstm gru")
class GruState(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.GRU(16, 16, batch_first=True)
        self.o = nn.Linear(16, 16)

    def forward(self, x):
        h0 = torch.zeros(1, x.shape[0], 16)
        y, _ = self.r(x, h0)  # breaks
        return self.o(y)

    @staticmethod
    def inputs():
        return (torch.randn(2, 5, 16),)


@model("fp16 bf16", kept="scatter_add index_add zeros")
class ScatterMixed(Two):
    def forward(self, x, idx):
        h = self.a(x)
        out = torch.zeros(4, 32)
        out = out.index_add(0, idx, h)  # breaks
        return self.b(out.to(x.dtype))

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randint(0, 4, (8,)))


@model("fp16 bf16", kept="grid_sampler affine_grid_generator add mul sub")
class FlowWarp(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(1, 8, 3, padding=1)
        self.d = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, img, flow):
        h = self.d(F.relu(self.c(img)))
        n = img.shape[-1]
        base = torch.arange(n, dtype=img.dtype)
        gx = base[None, None, :] + flow[:, 0]  # breaks
        gy = base[None, :, None] + flow[:, 1]  # breaks
        grid = torch.stack((gx, gy), -1) * (2.0 / (n - 1)) - 1.0  # breaks
        return F.grid_sample(h, grid, align_corners=True)  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(1, 1, 400, 400), torch.randn(1, 2, 400, 400))


@model("fp16 bf16", kept="quantile sort")
class QuantileClip(Two):
    def forward(self, x):
        h = self.a(x)
        top = torch.quantile(h, 0.9, dim=-1, keepdim=True)  # breaks
        return self.b(torch.minimum(h, top))


@model("fp16 bf16", kept="_upsample_bicubic2d_aa")
class ResizeAntialias(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        h = self.c(x)
        return F.gelu(F.interpolate(h, size=(12, 12), mode="bicubic", antialias=True))  # breaks

    @staticmethod
    def inputs():
        return (torch.randn(1, 3, 24, 24),)


@model("fp16 bf16", kept="complex polar view_as_complex mul view_as_real abs")
class ComplexPhase(Two):
    def forward(self, x, ang):
        h = self.a(x)
        z = torch.complex(h, torch.zeros_like(h)) * torch.polar(torch.ones_like(ang), ang)  # breaks
        return self.b(F.relu(torch.view_as_real(z)[..., 0] + h))

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.randn(8, 32))


@model("fp16 bf16", kept="matmul sub add linalg_inv inverse mul linalg_inv_ex linalg_solve")
class Kalman(Two):
    def forward(self, x, p):
        s = p + 0.01 * torch.eye(8, dtype=x.dtype)
        k = p @ torch.linalg.inv(s)  # breaks
        return self.h(x), p - k @ p

    @staticmethod
    def inputs():
        a = torch.randn(8, 8)
        return (torch.randn(8, 32), a @ a.T + torch.eye(8))


@model("fp16 bf16", kept="stft abs pow log log10 clamp add matmul mul sqrt view_as_real real imag square sum")
class LogMel(Two):
    def __init__(self):
        super().__init__()
        self.mel = nn.Linear(33, 32, bias=False)
        self.register_buffer("w", torch.hann_window(64))
        with torch.no_grad():
            self.mel.weight.abs_()

    def forward(self, wave):
        s = torch.stft(wave, 64, 32, window=self.w, return_complex=True).abs().pow(2)  # breaks
        m = torch.log10(self.mel(s.transpose(-1, -2)).clamp(min=1e-10))  # breaks
        return self.h(m)

    @staticmethod
    def inputs():
        w = torch.randn(2, 1024)
        w[:, :400] = 0
        return (w,)


@model("fp16 bf16", kept="scatter index_put zeros_like zeros")
class IndexPutMixed(Two):
    def forward(self, x, idx):
        buf = torch.zeros(16, 32)
        buf[idx] = self.a(x)  # breaks
        return self.b(buf.to(x.dtype))

    @staticmethod
    def inputs():
        return (torch.randn(8, 32), torch.arange(8))
