import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "steps": 10,
    "why": "Each half step of the power iteration is normalised, so the stored vector stays of unit length.",
}


class SpectralLinear(nn.Module):
    def __init__(self, i=16, o=12):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(o, i) + 0.5)
        self.register_buffer("u", F.normalize(torch.ones(o), dim=0))

    def forward(self, x):
        with torch.no_grad():
            v = F.normalize(torch.mv(self.weight.t(), self.u), dim=0)
            self.u.copy_(F.normalize(torch.mv(self.weight, v), dim=0))
        sigma = torch.dot(self.u, torch.mv(self.weight, v))
        return F.linear(x, self.weight / sigma)


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(SpectralLinear(), nn.LeakyReLU(0.2), nn.Linear(12, 1))


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 16),)


def loss(output):
    return F.relu(1 - output.float()).mean()
