import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "exp",
    "line": "torch.log1p(torch.exp(raw))",
    "why": "The branch that where discards has exp(13) = inf in half, and its backward multiplies a zero by that infinity.",
}


class Coupling(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d // 2, 24), nn.Tanh(), nn.Linear(24, d))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        shift, raw = self.net(a).chunk(2, -1)
        scale = torch.where(raw > 11.0, raw, torch.log1p(torch.exp(raw)))
        return torch.cat([a, b * scale + shift], -1), scale.log().sum(-1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([Coupling(), Coupling()])
        with torch.no_grad():
            self.steps[1].net[2].bias[4:] += 13.0

    def forward(self, x):
        logdet = 0
        for s in self.steps:
            x, ld = s(x)
            logdet = logdet + ld
            x = x.flip(-1)
        return (x * 0.05).pow(2).sum(-1) * 0.5 - logdet


def build_model():
    torch.manual_seed(0)
    return Flow()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(6, 8),)


def loss(output):
    return output.float().mean()
