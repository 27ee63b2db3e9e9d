import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "harmless": True,
    "steps": 60,
    "why": "Momentum 0.1 moves the running statistics until they are within a few percent of the batch value.",
}


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(5, 2, 6, 6) * 1.5 + 0.5,)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(5) % 3)
