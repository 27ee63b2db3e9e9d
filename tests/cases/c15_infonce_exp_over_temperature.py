"""C15 infonce_exp_over_temperature (exp-overflow)

Reported in: Lightning-Universe/lightning-bolts issue 811

Contrastive loss that exponentiates similarity divided by a small temperature. exp(1/0.07) is
about 1.6 million: inf in half, and inf/inf gives NaN. The fused log-softmax form has no such
limit.
"""

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = "Lightning-Universe/lightning-bolts issue 811"
KIND = "exp-overflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "nan",
    "culprit_op": "exp",
    "must_keep_fp32": ["exp", "sum", "div", "log"],
    "hazard": "exp-overflow-fp16",
    "safe": "bf16 (loss only approximate); or fp32 for exp..log, or log_softmax",
    "safe_modes": ["bf16"],
    "safe_tol": 0.15,
}


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.enc = nn.Linear(d, 16)

    def forward(self, a, b):
        za, zb = F.normalize(self.enc(a), dim=-1, eps=1e-4), F.normalize(self.enc(b), dim=-1, eps=1e-4)
        e = torch.exp(torch.matmul(za, zb.t()) / 0.07)
        return -torch.log(torch.diagonal(e) / e.sum(-1))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    a = torch.randn(1, 32) * 2 + 0.5 * torch.randn(12, 32)
    return (a, a + 0.5 * torch.randn(12, 32))


def loss(output):
    return output.float().mean()
