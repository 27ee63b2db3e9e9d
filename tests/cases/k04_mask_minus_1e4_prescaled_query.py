"""K04 mask_minus_1e4_prescaled_query (clean control)

Looks like the mask and logit hazards but is written safely: the query is scaled first and the
mask constant -1e4 fits in half with room for the score.
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
    def __init__(self, d=32):
        super().__init__()
        self.q, self.k, self.v, self.d = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), d

    def forward(self, x):
        s = torch.matmul(self.q(x) * self.d**-0.5, self.k(x).transpose(-2, -1))
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return torch.matmul(s.masked_fill(future, -1e4).softmax(-1), self.v(x))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 12, 32),)
