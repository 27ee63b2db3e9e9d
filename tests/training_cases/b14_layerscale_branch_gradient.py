import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "zero-grad",
    "culprit_op": "mul",
    "line": "self.gamma * y",
    "param": "mlp",
    "why": "Layer scale at 1e-6 multiplies an already small gradient, so the branch behind it receives exactly zero in half.",
}


class CaitBlock(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))
        self.gamma = nn.Parameter(torch.full((d,), 1e-6))
        self.head = nn.Linear(d, 5)

    def forward(self, x):
        y = self.mlp(self.norm(x))
        x = x + self.gamma * y
        return self.head(x.mean(1))


def build_model():
    torch.manual_seed(0)
    return CaitBlock()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(8, 10, 16),)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(8) % 5)
