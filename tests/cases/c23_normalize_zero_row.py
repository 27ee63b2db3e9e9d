"""C23 normalize_zero_row (eps-underflow)

Reported in: pytorch/pytorch issue 32137

F.normalize with its default floor of 1e-12. In half the floor rounds to zero, so an all-zero
row (padding, a dead unit) is divided 0/0. bf16 can represent 1e-12 and is unaffected.
"""

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = "pytorch/pytorch issue 32137"
KIND = "eps-underflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "nan",
    "culprit_op": "clamp_min",
    "must_keep_fp32": ["linalg_vector_norm", "clamp_min", "div"],
    "hazard": "epsilon-underflow-fp16",
    "safe": "bf16; or an eps of at least about 1e-7 that half can hold; or fp32 normalisation",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 32, bias=False)

    def forward(self, x):
        return F.normalize(F.relu(self.fc(x)), dim=-1)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    x = torch.randn(5, 16)
    x[2] = 0.0
    return (x,)
