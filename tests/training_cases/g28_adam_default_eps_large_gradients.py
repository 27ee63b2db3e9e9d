import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "Default eps is zero in half, but every gradient is of order one or more, so no second moment vanishes.",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(torch.sigmoid(self.a(x)))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.rand(32, 6) + 0.5,)


def loss(output):
    return (output.float() - torch.tensor([2.0, -3.0, 4.0])).pow(2).sum()


def make_optimizer(params):
    return torch.optim.Adam(params, lr=0.02)
