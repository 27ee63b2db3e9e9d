import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "reciprocal",
    "line": ".reciprocal()",
    "why": "The potential 1/r of about 400 fits, but its derivative -1/r^2 does not.",
}


class PairPotential(nn.Module):
    """charges from a small network, positions in micrometres"""

    def __init__(self, n=5):
        super().__init__()
        self.pos = nn.Parameter(
            torch.tensor([[0.0, 0, 0], [0.0024, 0, 0], [0, 0.0031, 0], [0, 0, 0.0028], [0.002, 0.002, 0.002]])
        )
        self.q = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        i, j = torch.triu_indices(n, n, 1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)

    def forward(self, feats):
        q = self.q(feats).squeeze(-1)
        delta = self.pos[self.i] - self.pos[self.j]
        r = delta.abs().sum(-1)
        inv = r.reciprocal()
        return q[self.i] * q[self.j] * inv


def build_model():
    torch.manual_seed(0)
    return PairPotential()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(5, 3),)


def loss(output):
    return output.float().mean()
