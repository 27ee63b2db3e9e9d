import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "acosh",
    "line": "torch.acosh(arg)",
    "why": "Near the origin of the Poincare ball 1 + 2e-4 rounds to 1 in half, where acosh has an infinite slope.",
}


class Poincare(nn.Module):
    def __init__(self, n=20, d=6):
        super().__init__()
        self.points = nn.Embedding(n, d)
        nn.init.uniform_(self.points.weight, -0.004, 0.004)

    def forward(self, i, j):
        u, v = self.points(i), self.points(j)
        num = ((u - v) * 16).square().sum(-1) / 256
        den = (1 - u.square().sum(-1)) * (1 - v.square().sum(-1))
        arg = 1 + 2 * num / den
        return torch.acosh(arg)


def build_model():
    torch.manual_seed(3)
    return Poincare()


def example_inputs():
    return torch.arange(0, 10), torch.arange(10, 20)


def loss(output):
    return output.float().sum()
