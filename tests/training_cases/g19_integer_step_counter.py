import torch
from torch import nn

EXPECT = {
    "naive": "bf16",
    "harmless": True,
    "steps": 400,
    "why": "The counter is a long buffer, which a cast leaves alone.",
}


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.count += 1
        return self.fc(x) * (self.count.clamp(max=100) / 100).to(x.dtype)


def build_model():
    torch.manual_seed(0)
    return Counting()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(3, 4),)


def loss(output):
    return output.float().abs().mean()
