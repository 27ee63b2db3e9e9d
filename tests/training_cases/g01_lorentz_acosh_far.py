import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "The argument of acosh is clamped at 1.05, well away from 1 in half, and the points lie far apart.",
}


class Hyper(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Embedding(20, 5)
        nn.init.uniform_(self.points.weight, -0.3, 0.3)

    def forward(self, i, j):
        u, v = self.points(i), self.points(j)
        num = torch.sum((u - v) ** 2, -1)
        den = (1 - u.square().sum(-1)) * (1 - v.square().sum(-1))
        return torch.acosh((1 + 2 * num / den).clamp(min=1.05))


def build_model():
    torch.manual_seed(3)
    return Hyper()


def example_inputs():
    return torch.arange(0, 10), torch.arange(10, 20)


def loss(output):
    return output.float().sum()
