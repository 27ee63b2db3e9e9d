import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {"naive": "bf16", "harmless": True, "why": "Gradients of several hundred thousand overflow half but not bf16."}


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
    return (torch.randn(400, 10),)


def loss(output):
    return 0.5 * (output.float() - torch.linspace(800.0, 1000.0, 400)).square().sum()
