import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "alpha 0.9 and eps 0.01 keep the root mean square away from zero in half.",
}


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(3, 10, batch_first=True), nn.Linear(10, 1)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


def build_model():
    torch.manual_seed(0)
    return Forecaster()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(16, 8, 3),)


def loss(output):
    return (output.float() - 3.0).pow(2).mean()


def make_optimizer(params):
    return torch.optim.RMSprop(params, lr=0.02, alpha=0.9, eps=1e-2)
