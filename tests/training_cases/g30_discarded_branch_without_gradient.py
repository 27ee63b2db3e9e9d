import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "exp overflows in the discarded branch, but that branch is detached and serves as a weight, so no gradient crosses it.",
}


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.val = nn.Linear(5, 1), nn.Linear(5, 3)
        nn.init.constant_(self.score.bias, 12.5)

    def forward(self, x):
        s = self.score(x)
        w = torch.where(s > 3.0, torch.ones_like(s), torch.exp(s)).detach()
        return w * self.val(x) + 0.1 * s


def build_model():
    torch.manual_seed(0)
    return Weighted()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(10, 5),)


def loss(output):
    return output.float().pow(2).mean()
