import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "steps": 80,
    "why": "Decay 0.8 changes the averages by many units in the last place, so half follows.",
}


class VQ(nn.Module):
    def __init__(self, k=5, d=4):
        super().__init__()
        self.enc, self.dec = nn.Linear(10, d), nn.Linear(d, 10)
        self.register_buffer("codebook", torch.randn(k, d))
        self.register_buffer("size", torch.full((k,), 2.0))

    def forward(self, x):
        z = self.enc(x)
        idx = (z[:, None] - self.codebook).square().sum(-1).argmin(1)
        onehot = torch.zeros(x.shape[0], 5, dtype=z.dtype).scatter_(1, idx[:, None], 1.0)
        with torch.no_grad():
            self.size.mul_(0.8).add_(onehot.sum(0), alpha=0.2)
        q = self.codebook[idx]
        return self.dec(z + (q - z).detach()), z, q


def build_model():
    torch.manual_seed(0)
    return VQ()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(8, 10),)


def loss(output):
    y, z, q = output
    return y.float().pow(2).mean() + 0.25 * F.mse_loss(z.float(), q.float())
