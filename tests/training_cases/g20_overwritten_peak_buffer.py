import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "steps": 300,
    "why": "The buffer holds only the latest batch maximum, overwritten each step, and nothing accumulates.",
}


class Peak(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.v, self.o = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("peak", torch.zeros(()))

    def forward(self, x):
        h = F.relu(self.w(x)) * self.v(x)
        with torch.no_grad():
            self.peak.copy_(h.abs().max())
        return self.o(h)


def build_model():
    torch.manual_seed(0)
    return Peak()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(6, 8) * 3,)


def loss(output):
    return output.float().pow(2).mean()
