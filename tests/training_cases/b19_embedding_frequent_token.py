import torch
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "wrong-grad",
    "culprit_op": "embedding",
    "line": "self.table(ids)",
    "param": "table",
    "why": "The gradient of a token seen thousands of times is added up in bf16 and stops growing after a few hundred additions.",
}


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 6)
        self.w = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, ids):
        return (self.table(ids) * self.w).sum(-1)


def build_model():
    torch.manual_seed(0)
    return Bag()


def example_inputs():
    return (torch.cat([torch.zeros(4000, dtype=torch.long), torch.tensor([1, 2, 3])]),)


def loss(output):
    return output.float().mean()
