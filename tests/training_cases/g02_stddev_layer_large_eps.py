import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "Variance of order one and eps 1e-3 are both well represented in half.",
}


class BatchStd(nn.Module):
    def forward(self, x):
        s = torch.sqrt(torch.mean((x - x.mean(0)) ** 2, 0) + 1e-3).mean()
        return torch.cat([x, s.expand(x.size(0), 1, *x.shape[2:])], dim=1)


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.LeakyReLU(0.2),
        BatchStd(),
        nn.Conv2d(7, 4, 3, 2),
        nn.Flatten(),
        nn.Linear(36, 1),
    )


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 3, 8, 8),)


def loss(output):
    return F.softplus(-output.float()).mean()


def make_optimizer(params):
    return torch.optim.SGD(params, lr=0.5)
