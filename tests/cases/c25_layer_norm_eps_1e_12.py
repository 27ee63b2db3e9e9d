"""C25 layer_norm_eps_1e_12 (eps-underflow)

Reported in: deepspeedai/DeepSpeed issue 581

Layer norm written out with eps = 1e-12 (the BERT value). A constant row has zero variance and
the eps is lost in half: (x - mean) / sqrt(0) is 0/0.
"""

import torch
from torch import nn

SOURCE = "deepspeedai/DeepSpeed issue 581"
KIND = "eps-underflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "nan",
    "culprit_op": "sqrt",
    "must_keep_fp32": ["mean", "sub", "pow", "add", "sqrt", "div"],
    "hazard": "epsilon-underflow-fp16",
    "safe": "bf16; or native layer_norm, which keeps statistics in fp32",
    "safe_modes": ["bf16"],
}


class LN(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        v = (x - u).pow(2).mean(-1, keepdim=True)
        return self.w * ((x - u) / torch.sqrt(v + 1e-12)) + self.b


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16, bias=False), LN(16), nn.Linear(16, 4)).eval()


def example_inputs():
    torch.manual_seed(1)
    x = torch.randn(4, 16)
    x[3] = 0.0
    return (x,)
