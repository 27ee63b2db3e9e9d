import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "update_lost",
    "culprit_op": "<optimizer.step>",
    "line": "torch.optim.AdamW(",
    "param": "item.weight",
    "rows": [10, 40],
    "steps": 40,
    "why": "Decoupled decay multiplies by 1 - 1e-4, which bf16 rounds back to the same weight, so unused rows never shrink.",
}


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(8, 6), nn.Embedding(40, 6)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(1) + self.bias


def build_model():
    torch.manual_seed(0)
    return Recommender()


def example_inputs():
    torch.manual_seed(1)
    return torch.randint(0, 8, (32,)), torch.randint(0, 10, (32,))


def loss(output):
    return F.binary_cross_entropy_with_logits(output.float(), (torch.arange(32) % 2).float())


def make_optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3, weight_decay=0.1)
