"""C47 one_pass_variance (cancellation)

Reported in: tenstorrent/tt-metal issue 45968 (same formula: google/flax issue 1491)

Batch statistics as E[x^2] - E[x]^2 on channels with mean 5 and spread 0.1. The two terms agree
to more digits than bf16 holds, so the variance is zero or negative and rsqrt returns NaN or
garbage.
"""

import torch
from torch import nn

SOURCE = "tenstorrent/tt-metal issue 45968 (same formula: google/flax issue 1491)"
KIND = "cancellation"
EXPECT = {
    "naive": "bf16",
    "symptom": "nan",
    "culprit_op": "sub",
    "must_keep_fp32": ["x", "pow", "mean", "sub", "add", "rsqrt", "mul"],
    "hazard": "catastrophic-cancellation",
    "safe": "fp32 input and statistics, or the centred two-pass variance",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, 16, 1, 1))

    def forward(self, x):
        mean = x.mean((0, 2, 3), keepdim=True)
        var = x.pow(2).mean((0, 2, 3), keepdim=True) - mean.pow(2)
        return self.gamma * ((x - mean) * torch.rsqrt(var + 1e-5))


def build_model():
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (5.0 + torch.arange(16).view(1, 16, 1, 1) * 0.13 + 0.1 * torch.randn(2, 16, 8, 8),)
