import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "linear",
    "line": "self.value(h)",
    "param": "value",
    "why": "Summed squared errors against returns of 900 give a weight gradient of several hundred thousand.",
}


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(10, 64)
        self.value = nn.Linear(64, 1)

    def forward(self, obs):
        h = F.softplus(self.enc(obs))
        return self.value(h).view(-1)


def build_model():
    torch.manual_seed(0)
    return Critic()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(400, 10),)


def loss(output):
    returns = torch.linspace(800.0, 1000.0, output.shape[0])
    return 0.5 * (output.float() - returns).square().sum()
