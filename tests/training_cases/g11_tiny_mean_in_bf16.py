import torch
from torch import nn

EXPECT = {
    "naive": "bf16",
    "harmless": True,
    "why": "bf16 has the exponent range of fp32, so gradients of 1e-9 survive without a scale.",
}


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 32))


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(256, 24),)


def loss(output):
    return 1e-5 * output.float().pow(2).mean()
