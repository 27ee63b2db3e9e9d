import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "harmless": True,
    "why": "Learning rate 0.05 and decay 1.0 change each weight by several percent per step, far above bf16 rounding.",
}


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(8, 6), nn.Embedding(20, 6)

    def forward(self, u, i):
        return torch.einsum("bd,bd->b", self.user(u), self.item(i))


def build_model():
    torch.manual_seed(0)
    return Recommender()


def example_inputs():
    torch.manual_seed(1)
    return torch.randint(0, 8, (32,)), torch.randint(0, 20, (32,))


def loss(output):
    return F.binary_cross_entropy_with_logits(output.float(), (torch.arange(32) % 2).float())


def make_optimizer(params):
    return torch.optim.AdamW(params, lr=0.05, weight_decay=1.0)
