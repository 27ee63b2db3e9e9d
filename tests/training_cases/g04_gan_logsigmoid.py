import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "harmless": True,
    "why": "log(1 - sigmoid(s)) is written as logsigmoid(-s), whose gradient is bounded even for a saturated discriminator.",
}


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 10), nn.Tanh())
        self.disc = nn.Sequential(nn.Linear(10, 32), nn.LeakyReLU(0.1), nn.Linear(32, 1))
        nn.init.constant_(self.disc[2].bias, 8.5)

    def forward(self, z):
        return F.logsigmoid(-self.disc(self.gen(z)))


def build_model():
    torch.manual_seed(0)
    return Gan()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(12, 4),)


def loss(output):
    return output.float().mean()
