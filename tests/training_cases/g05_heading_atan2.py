import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "The two components are normalised to unit length before atan2, so u*u + v*v is one.",
}


class Heading(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 12, batch_first=True)
        self.head = nn.Linear(12, 2)
        nn.init.constant_(self.head.bias, 0.5)

    def forward(self, seq):
        h, _ = self.rnn(seq)
        d = F.normalize(self.head(h[:, -1]), dim=-1, eps=1e-3)
        return torch.atan2(d[:, 1], d[:, 0])


def build_model():
    torch.manual_seed(0)
    return Heading()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(6, 7, 5),)


def loss(output):
    return (1 - torch.cos(output.float() + 1.0)).mean()
