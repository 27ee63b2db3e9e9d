import torch
from torch import nn

EXPECT = {"naive": "fp16", "harmless": True, "why": "Gradients of order 0.1 square safely and eps 1e-3 exists in half."}


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(32, 16) * 2,)


def loss(output):
    return 3 * (output.float() - 2).pow(2).sum(-1).mean()


def make_optimizer(params):
    return torch.optim.Adam(params, lr=0.02, betas=(0.9, 0.95), eps=1e-3)
