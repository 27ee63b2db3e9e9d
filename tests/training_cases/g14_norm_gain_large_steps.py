import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "A learning rate of 1 moves weights by many units in the last place per step.",
}


class Encoder(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.proj, self.norm = nn.Linear(6, d), nn.LayerNorm(d)
        self.fc, self.cls = nn.Linear(d, d), nn.Linear(d, 4)

    def forward(self, x):
        x = self.proj(x)
        return self.cls(self.norm(x + torch.tanh(self.fc(x))).amax(1))


def build_model():
    torch.manual_seed(0)
    return Encoder()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(8, 5, 6),)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(8) % 4)


def make_optimizer(params):
    return torch.optim.SGD(params, lr=1.0)
