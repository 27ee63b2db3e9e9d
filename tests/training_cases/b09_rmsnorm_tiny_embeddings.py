import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "rsqrt",
    "line": "torch.rsqrt(ms + self.eps)",
    "why": "rsqrt of 1e-5 is a harmless 300, but its derivative uses the cube of that, 3e7, beyond half.",
}


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.eps, self.gain = eps, nn.Parameter(torch.ones(d))

    def forward(self, x):
        ms = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(ms + self.eps) * self.gain


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.att = nn.MultiheadAttention(d, 2, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.att(h, h, h, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self, v=30, d=16):
        super().__init__()
        self.tok = nn.Embedding(v, d)
        nn.init.normal_(self.tok.weight, std=0.003)
        self.block, self.head = Block(d), nn.Linear(d, v)

    def forward(self, ids):
        return self.head(self.block(self.tok(ids)))


def build_model():
    torch.manual_seed(0)
    return LM()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 30, (3, 6)),)


def loss(output):
    return F.cross_entropy(output.float().flatten(0, 1), torch.arange(18) % 30)
