"""K08 stable_softmax_and_log_softmax (clean control)

Exponential of max-subtracted logits and log_softmax: every exponential is at most one and no
probability is logged.
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
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 20)

    def forward(self, x):
        z = self.fc(x) * 3.0
        e = torch.exp(z - z.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True), torch.log_softmax(z, -1)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(8, 16),)
