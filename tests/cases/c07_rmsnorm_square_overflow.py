"""C07 rmsnorm_square_overflow (square-overflow)

Reported in: pytorch/pytorch PR 133085

RMS norm written with x.pow(2).mean() in the activation dtype. A value of 300 squares to 90000,
inf in half; rsqrt(inf) is 0 and the whole row is silently replaced by zeros. No NaN or inf
reaches the output, so only an error measure or a range check on the square notices.
"""

import torch
from torch import nn

SOURCE = "pytorch/pytorch PR 133085"
KIND = "square-overflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "rel_err>0.1",
    "culprit_op": "pow",
    "must_keep_fp32": ["pow", "mean", "add", "rsqrt"],
    "hazard": "square-overflow-fp16",
    "safe": "bf16; or fp16 with the statistics in fp32",
    "safe_modes": ["bf16"],
}


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Net(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.norm, self.proj = RMSNorm(d), nn.Linear(d, 16)

    def forward(self, x):
        return self.proj(self.norm(x))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    x = torch.randn(4, 64)
    x[:, 7] = 420.0
    return (x,)
