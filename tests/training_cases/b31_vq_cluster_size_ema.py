import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "buffer_stuck",
    "state": "cluster_size",
    "steps": 300,
    "culprit_op": "mul",
    "line": "self.cluster_size.mul_(self.decay)",
    "why": "Multiplying by 0.999 is rounded back to the same number in bf16, so the count of an unused code never decays.",
}


class VQ(nn.Module):
    def __init__(self, k=6, d=4, decay=0.999):
        super().__init__()
        self.decay = decay
        self.enc, self.dec = nn.Linear(10, d), nn.Linear(d, 10)
        self.register_buffer("codebook", torch.randn(k, d))
        self.register_buffer("cluster_size", torch.tensor([16.0, 1, 1, 8, 24, 12]))

    def forward(self, x):
        z = self.enc(x)
        dist = (z.unsqueeze(1) - self.codebook).pow(2).sum(-1)
        idx = dist.argmin(1)
        onehot = F.one_hot(idx, self.codebook.shape[0]).to(z.dtype)
        with torch.no_grad():
            self.cluster_size.mul_(self.decay)
            self.cluster_size.add_(onehot.sum(0) * (1 - self.decay))
        q = onehot @ self.codebook
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
