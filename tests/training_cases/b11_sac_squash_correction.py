import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "log",
    "line": "(1 - action.pow(2) + 1e-6).log()",
    "why": "A saturated action makes the argument 1e-6, whose reciprocal is inf in half and meets the zero slope of tanh.",
}


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.mu, self.log_std = nn.Linear(32, 3), nn.Linear(32, 3)
        with torch.no_grad():
            self.mu.weight.mul_(0.3)
            self.mu.bias.copy_(torch.tensor([8.0, -0.5, 0.3]))

    def forward(self, obs, noise):
        h = self.body(obs)
        mu, log_std = self.mu(h), self.log_std(h).clamp(-5, 2)
        action = torch.tanh(mu + noise * log_std.exp() * 0.1)
        logp = -0.5 * noise.pow(2) - log_std - 0.919
        logp = logp - (1 - action.pow(2) + 1e-6).log()
        return logp.sum(-1)


def build_model():
    torch.manual_seed(0)
    return Actor()


def example_inputs():
    torch.manual_seed(1)
    return torch.randn(8, 6), torch.randn(8, 3)


def loss(output):
    return output.float().sum()
