import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "Returns are standardised and the loss is a mean, so gradients are of order one.",
}


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.value = nn.Linear(10, 64), nn.Linear(64, 1)

    def forward(self, obs):
        return self.value(F.softplus(self.enc(obs))).view(-1)


def build_model():
    torch.manual_seed(0)
    return Critic()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(200, 10),)


def loss(output):
    r = torch.linspace(800.0, 1000.0, output.shape[0])
    r = (r - r.mean()) / r.std()
    return 0.5 * (output.float() - r).square().mean()


def make_optimizer(params):
    return torch.optim.SGD(params, lr=0.1)
