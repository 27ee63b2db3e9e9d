import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "steps": 200,
    "why": "A running maximum stays where it is in every format once the largest value has been seen.",
}


class Peak(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.register_buffer("top", torch.zeros(6))

    def forward(self, x):
        y = self.lin(x)
        self.top.copy_(torch.maximum(self.top, y.detach().abs().amax(0)))
        return y / (self.top + 1.0)


def build_model():
    torch.manual_seed(0)
    return Peak()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(7, 6) * 3,)


def loss(output):
    return output.float().pow(2).mean()
