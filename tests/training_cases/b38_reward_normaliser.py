import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "buffer_nonfinite",
    "state": "norm.var",
    "steps": 1,
    "culprit_op": "var",
    "line": "rewards.var(unbiased=False)",
    "why": "Rewards spread over a thousand have a variance of 3e5, inf in half; the running variance stays inf and normalised rewards become zero for good.",
}


class RunningNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("var", torch.ones(()))

    def forward(self, rewards):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(rewards.mean(), alpha=0.1)
            self.var.mul_(0.9).add_(rewards.var(unbiased=False), alpha=0.1)
        return (rewards - self.mean) / torch.sqrt(self.var + 1e-3)


class Reinforce(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.policy = RunningNorm(), nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, obs, act, rewards):
        logp = F.log_softmax(self.policy(obs), -1).gather(1, act[:, None]).squeeze(1)
        return -logp * self.norm(rewards)


def build_model():
    torch.manual_seed(0)
    return Reinforce()


def example_inputs():
    torch.manual_seed(1)
    return torch.randn(20, 4), torch.randint(0, 3, (20,)), torch.linspace(-1000.0, 1000.0, 20)


def loss(output):
    return output.float().mean()
