"""C54 adam_eps_vanishes_in_half (optimizer-precision)

Reported in: pytorch/pytorch issue 8860

Training a .half() model with Adam's default eps of 1e-8. The eps is zero in half and the
squared gradient underflows as well, so the first update divides by zero and the weights become
inf or NaN.
"""

import torch
from torch import nn

SOURCE = "pytorch/pytorch issue 8860"
KIND = "optimizer-precision"
EXPECT = {
    "naive": "fp16",
    "symptom": "param-nonfinite",
    "steps": 3,
    "culprit_op": "<optimizer.step>",
    "must_keep_fp32": ["<master-weights>", "<optimizer-state>"],
    "hazard": "optimizer-eps-underflow",
    "safe": "fp32 master weights and optimizer state (autocast training); or a larger eps with loss scaling",
    "safe_modes": ["bf16", "autocast-bf16"],
}


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(64, 16) * 0.05,)


def make_optimizer(params):
    return torch.optim.Adam(params, lr=1e-3)


def loss(output):
    return (output.float() * 0.01).pow(2).mean()
