import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "harmless": True,
    "why": "Rows that are never looked up do not move, but with no decay and zero gradient they do not move in fp32 either.",
}


class Cbow(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.EmbeddingBag(25, 8, mode="mean")
        self.out = nn.Linear(8, 5)

    def forward(self, ids):
        return self.out(self.e(ids))


def build_model():
    torch.manual_seed(0)
    return Cbow()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 9, (10, 3)),)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(10) % 5)


def make_optimizer(params):
    return torch.optim.SGD(params, lr=5.0)
