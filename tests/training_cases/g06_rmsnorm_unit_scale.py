import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "Activations are of order one, so rsqrt and its cube stay small; eps 1e-5 hardly matters.",
}


class RMS(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.gain


class Block(nn.Module):
    def __init__(self, d=16, v=30):
        super().__init__()
        self.tok, self.norm = nn.Embedding(v, d), RMS(d)
        self.att = nn.MultiheadAttention(d, 2, batch_first=True)
        self.head = nn.Linear(d, v)

    def forward(self, ids):
        x = self.tok(ids)
        h = self.norm(x)
        return self.head(x + self.att(h, h, h, need_weights=False)[0])


def build_model():
    torch.manual_seed(0)
    return Block()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 30, (3, 6)),)


def loss(output):
    return F.cross_entropy(output.float().flatten(0, 1), torch.arange(18) % 30)


def make_optimizer(params):
    return torch.optim.SGD(params, lr=0.5, momentum=0.9)
