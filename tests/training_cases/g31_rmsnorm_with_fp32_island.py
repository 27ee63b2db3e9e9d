import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "Activations are tiny, but the norm is computed after .float() and cast back, so eps and the cube of rsqrt live in fp32.",
}


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.eps, self.gain = eps, nn.Parameter(torch.ones(d))

    def forward(self, x):
        f = x.float()
        f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + self.eps)
        return f.to(x.dtype) * self.gain


class LM(nn.Module):
    def __init__(self, v=30, d=16):
        super().__init__()
        self.tok, self.norm = nn.Embedding(v, d), RMSNorm(d)
        nn.init.normal_(self.tok.weight, std=0.003)
        self.ff, self.head = nn.Linear(d, d), nn.Linear(d, v)

    def forward(self, ids):
        return self.head(F.gelu(self.ff(self.norm(self.tok(ids)))))


def build_model():
    torch.manual_seed(0)
    return LM()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 30, (3, 6)),)


def loss(output):
    return F.cross_entropy(output.float().flatten(0, 1), torch.arange(18) % 30)
