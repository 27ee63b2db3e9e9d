"""K10 tied_language_model (clean control)

Tied embedding and head, converted as one module: sharing survives a plain cast and nothing
conflicts.
"""

import torch
from torch import nn

EXPECT = {
    "naive": None,
    "hazard": None,
    "must_keep_fp32": [],
    "safe_modes": ["bf16", "fp16", "autocast-bf16"],
    "safe_tol": 0.03,
}


class Net(nn.Module):
    def __init__(self, v=60, d=32):
        super().__init__()
        self.emb, self.norm, self.head = nn.Embedding(v, d), nn.LayerNorm(d), nn.Linear(d, v, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        return self.head(self.norm(self.emb(ids)))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 60, (2, 16)),)
