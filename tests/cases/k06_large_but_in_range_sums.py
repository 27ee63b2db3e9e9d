"""K06 large_but_in_range_sums (clean control)

Sums over 500 elements of about 20: ten thousand, well inside half. Range checks with a sensible
margin should stay quiet.
"""

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": None,
    "hazard": None,
    "must_keep_fp32": [],
    "safe_modes": ["bf16", "fp16", "autocast-bf16"],
    "safe_tol": 0.03,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        nn.init.constant_(self.fc.bias, 20.0)

    def forward(self, x):
        h = F.relu(self.fc(x)).sum(1)
        return self.head(h / x.shape[1])


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(3, 500, 8),)
