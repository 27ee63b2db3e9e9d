import torch
from torch import nn

EXPECT = {"naive": "fp16", "harmless": True, "why": "The softening 0.1 bounds 1/r by 10 and its derivative by 100."}


class Softened(nn.Module):
    def __init__(self, n=5):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(n, 3) * 0.5)
        self.q = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        i, j = torch.triu_indices(n, n, 1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)

    def forward(self, feats):
        q = self.q(feats).squeeze(-1)
        r = (self.pos[self.i] - self.pos[self.j]).norm(dim=-1)
        return q[self.i] * q[self.j] * torch.reciprocal(r + 0.1)


def build_model():
    torch.manual_seed(0)
    return Softened()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(5, 3),)


def loss(output):
    return output.float().mean()
