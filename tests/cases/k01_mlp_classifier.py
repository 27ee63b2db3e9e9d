"""K01 mlp_classifier (clean control)

Plain MLP trained with cross entropy on moderate logits; nothing to report.
"""

import torch
from torch import nn

EXPECT = {
    "naive": None,
    "hazard": None,
    "must_keep_fp32": [],
    "safe_modes": ["bf16", "fp16", "autocast-bf16"],
    "safe_tol": 0.03,
}


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(32, 32),)


def loss(output):
    return nn.functional.cross_entropy(output.float(), torch.arange(32) % 10)
