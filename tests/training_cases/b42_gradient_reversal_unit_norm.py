import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "<custom-function>",
    "line": "g.abs().amax(",
    "param": "features",
    "why": "The reversal layer rescales rows by their largest entry plus 1e-12; tiny gradients are zero in half, so it computes 0/0.",
}


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        size = g.abs().amax(dim=-1, keepdim=True) + 1e-12
        return -ctx.lam * g / size, None


class Dann(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(1, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))
        self.domain = nn.Linear(10, 2)

    def forward(self, x):
        return self.domain(Reverse.apply(self.features(x), 0.3))


def build_model():
    torch.manual_seed(0)
    return Dann()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(16, 1, 16),)


def loss(output):
    return 1e-7 * F.cross_entropy(output.float(), torch.arange(16) % 2)
