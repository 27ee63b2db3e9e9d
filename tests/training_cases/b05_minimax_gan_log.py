import torch
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "nonfinite-grad",
    "culprit_op": "log",
    "line": "torch.log(1.0 - score)",
    "why": "A confident discriminator gives exactly 1 in bf16; the clamp after the log saves the forward but the backward is 0/0.",
}


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 10), nn.Tanh())
        self.disc = nn.Sequential(nn.Linear(10, 32), nn.LeakyReLU(0.1), nn.Linear(32, 1), nn.Sigmoid())
        nn.init.constant_(self.disc[2].bias, 8.5)

    def forward(self, z):
        score = self.disc(self.gen(z)).squeeze(-1)
        return torch.log(1.0 - score).clamp(min=-10.0)


def build_model():
    torch.manual_seed(0)
    return Gan()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(12, 4),)


def loss(output):
    return output.float().mean()
