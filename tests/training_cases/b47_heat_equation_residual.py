import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "div",
    "line": "lap / self.dx ** 2",
    "why": "The residual itself is of order a hundred, but its backward divides by dx^2 = 1e-6 and passes 65504.",
}


class Heat(nn.Module):
    dx = 1e-3

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.register_buffer("stencil", torch.tensor([[[1.0, -2.0, 1.0]]]))
        with torch.no_grad():
            self.net[2].weight.mul_(1e-3)

    def forward(self, x):
        u = self.net(x).transpose(1, 2)
        lap = F.conv1d(u, self.stencil)
        return lap / self.dx**2


def build_model():
    torch.manual_seed(0)
    return Heat()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 12, 3),)


def loss(output):
    return output.float().abs().sum()
