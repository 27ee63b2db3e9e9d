import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "The discarded branch sees an argument clamped to 10, so exp stays at 22026 and its gradient is finite.",
}


class Coupling(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d // 2, 24), nn.Tanh(), nn.Linear(24, d))
        with torch.no_grad():
            self.net[2].bias[4:6] += 14.0

    def forward(self, x):
        a, b = x.chunk(2, -1)
        shift, raw = self.net(a).chunk(2, -1)
        soft = torch.log1p(torch.exp(raw.clamp(max=10.0)))
        scale = torch.where(raw > 10.0, raw, soft)
        y = torch.cat([a, b * scale + shift], -1)
        return 0.5 * (0.1 * y).square().sum(-1) - torch.log(scale).sum(-1)


def build_model():
    torch.manual_seed(0)
    return Coupling()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(6, 8),)


def loss(output):
    return output.float().mean()
