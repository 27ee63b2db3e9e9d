"""C88 fp8_unscaled_cast_saturates (fp8-range)

Reported in: jax-ml/ml_dtypes issue 400 (also pytorch/pytorch PR 178817)

Activations cast to e4m3 without any scale. Values above 448 are out of range: some stacks (and
older PyTorch) turn them into NaN, current PyTorch clips to 448. Here the clip is silent and
wrong by a factor.
"""

import torch
from torch import nn

SOURCE = "jax-ml/ml_dtypes issue 400 (also pytorch/pytorch PR 178817)"
KIND = "fp8-range"
EXPECT = {
    "naive": "fp8-cast",
    "symptom": "rel_err>0.1",
    "culprit_op": "linear",
    "culprit_fqn": "fc",
    "must_keep_fp32": ["fc"],
    "hazard": "fp8-saturation",
    "safe": "per-tensor scaling (amax / 448), or bf16",
    "safe_modes": ["bf16", "fp8-train"],
    "safe_tol": 0.1,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 16)

    def forward(self, x):
        return self.fc(x)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(16, 32) * 700.0,)
