"""C09 norm_clip_sum_of_squares (square-overflow)

Reported in: facebookresearch/fairscale PR 263 (same cause: arcee-ai/mergekit PR 704)

Rescaling a vector to a maximum norm where the norm is computed as sqrt(sum(x*x)) in half. Each
square fits but their sum does not; the norm is inf, the shrink factor is 0 and the result is
all zeros although the true norm is a few hundred.
"""

import torch
from torch import nn

SOURCE = "facebookresearch/fairscale PR 263 (same cause: arcee-ai/mergekit PR 704)"
KIND = "square-overflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "rel_err>0.1",
    "culprit_op": "sum",
    "must_keep_fp32": ["mul", "sum", "sqrt", "add", "reciprocal", "clamp"],
    "hazard": "norm-overflow-fp16",
    "safe": "bf16; or compute the norm in fp32",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(128, 32)

    def forward(self, x):
        norm = torch.sqrt((x * x).sum(-1, keepdim=True))
        return self.fc(x * (10.0 / (norm + 1e-3)).clamp(max=1.0))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 128) * 40,)
