"""K02 small_convnet (clean control)

Convolutions, batch norm with ordinary statistics, average pooling and a linear head.
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
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 3, 32, 32),)
