import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "Layer scale starts at 0.1, so the branch behind it receives gradients of 1e-4 and more.",
}


class Cait(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))
        self.gamma = nn.Parameter(torch.full((d,), 0.1))
        self.head = nn.Linear(d, 5)

    def forward(self, x):
        x = x + self.gamma * self.mlp(self.norm(x))
        return self.head(x.mean(1))


def build_model():
    torch.manual_seed(0)
    return Cait()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(8, 10, 16),)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(8) % 5)
