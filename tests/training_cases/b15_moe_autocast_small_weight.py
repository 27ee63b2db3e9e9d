import torch
from torch import nn

EXPECT = {
    "naive": "autocast-fp16",
    "symptom": "zero-grad",
    "culprit_op": "<loss-scaling>",
    "line": "2e-5 * torch.mean(",
    "param": "experts",
    "why": "Under half autocast without a scaler the gradient entering the experts is below 6e-8 and becomes zero.",
}


class MoE(nn.Module):
    def __init__(self, d=16, n=3):
        super().__init__()
        self.gate = nn.Linear(d, n)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(d, 24), nn.GELU(), nn.Linear(24, d)) for _ in range(n)])

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        y = torch.stack([e(x) for e in self.experts], -1)
        return (y * w.unsqueeze(-2)).sum(-1)


def build_model():
    torch.manual_seed(0)
    return MoE()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(128, 16),)


def loss(output):
    return 2e-5 * torch.mean(output.float() ** 2)
