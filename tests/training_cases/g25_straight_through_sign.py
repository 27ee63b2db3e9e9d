import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "A straight-through sign passes the gradient unchanged inside [-1, 1] in whatever type it arrives.",
}


class SignSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() <= 1, g, torch.zeros_like(g))


class Binary(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 12) * 0.4)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(F.linear(x, SignSTE.apply(self.w)) / 3.0)


def build_model():
    torch.manual_seed(0)
    return Binary()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(6, 12),)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(6) % 3)
