import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "The squash correction is written as 2*(log 2 - u - softplus(-2u)), which never takes the log of a rounded difference.",
}


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.mu, self.log_std = nn.Linear(32, 3), nn.Linear(32, 3)
        nn.init.constant_(self.mu.bias, 4.0)

    def forward(self, obs, noise):
        h = self.body(obs)
        log_std = self.log_std(h).clamp(-5, 2)
        u = self.mu(h) + noise * log_std.exp()
        logp = -0.5 * noise.pow(2) - log_std - 0.919
        return (logp - 2 * (0.6931 - u - F.softplus(-2 * u))).sum(-1)


def build_model():
    torch.manual_seed(0)
    return Actor()


def example_inputs():
    torch.manual_seed(1)
    return torch.randn(8, 6), torch.randn(8, 3)


def loss(output):
    return 0.2 * output.float().mean()
