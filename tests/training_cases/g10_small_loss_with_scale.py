import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "loss_scale": 16384.0,
    "why": "A tiny loss, but trained with a loss scale of 2**14, which lifts every gradient into range.",
}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(20, 40), nn.Linear(40, 30)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def build_model():
    torch.manual_seed(0)
    return Mlp()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(128, 20),)


def loss(output):
    return 1e-3 * output.float().pow(2).mean()
