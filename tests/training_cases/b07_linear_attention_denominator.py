import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "div",
    "line": "torch.div(num, den",
    "why": "Numerator and denominator are both about 1e-5 so the quotient is of order one, but its derivative 1/den exceeds 65504.",
}


class FavorAttention(nn.Module):
    def __init__(self, d=8, r=8):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.register_buffer("proj", torch.randn(d, r) * 0.3)

    def features(self, t):
        return torch.exp(t @ self.proj - 7.2)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = self.features(q), self.features(k)
        num = torch.einsum("bnr,bmr,bmd->bnd", q, k, v)
        den = torch.einsum("bnr,br->bn", q, k.sum(1))
        return self.out(torch.div(num, den.unsqueeze(-1)))


def build_model():
    torch.manual_seed(0)
    return FavorAttention()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 5, 8),)


def loss(output):
    return 4 * output.float().pow(2).sum()
