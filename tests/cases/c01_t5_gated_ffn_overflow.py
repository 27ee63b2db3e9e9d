"""C01 t5_gated_ffn_overflow (activation-overflow)

Reported in: huggingface/transformers issue 5651

A gated feed-forward block in the style of T5: the product of two projections feeds a down
projection whose accumulated result for an outlier channel lands a little above the largest half
number. In half it becomes inf, the residual carries it and the (fp32-computed) RMS norm that
follows turns the token into NaN. The matmul itself accumulates in fp32; it is the store to fp16
that overflows.
"""

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = "huggingface/transformers issue 5651"
KIND = "activation-overflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "nan",
    "culprit_op": "linear",
    "culprit_fqn": "wo",
    "must_keep_fp32": ["wo", "add"],
    "hazard": "activation-overflow-fp16",
    "safe": "bf16 everywhere; or fp16 with the down projection, residual add and norm in fp32",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self, d=64, f=128):
        super().__init__()
        self.wi_gate, self.wi_lin, self.wo = (
            nn.Linear(d, f, bias=False),
            nn.Linear(d, f, bias=False),
            nn.Linear(f, d, bias=False),
        )
        with torch.no_grad():
            self.wi_gate.weight.mul_(6.0)
            self.wi_lin.weight.copy_(self.wi_gate.weight)
            self.wo.weight[3] = 9.0  # one output channel sums every (non-negative) hidden unit

    def forward(self, x):
        h = F.gelu(self.wi_gate(x)) * self.wi_lin(x)
        r = (x + self.wo(h)).float()
        return (r * torch.rsqrt(r.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 16, 64) * 4.0,)
