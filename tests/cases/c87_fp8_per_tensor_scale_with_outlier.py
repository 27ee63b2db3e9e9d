"""C87 fp8_per_tensor_scale_with_outlier (fp8-scale)

Reported in: unslothai/unsloth PR 6772

Dynamic per-tensor fp8 scaling where one token carries an activation of 6e4. The scale is set by
that value, so ordinary activations around 0.3 fall below the smallest fp8 number and every
other token loses its signal. Per-row scaling confines the damage.
"""

import torch
from torch import nn

SOURCE = "unslothai/unsloth PR 6772"
KIND = "fp8-scale"
EXPECT = {
    "naive": "fp8-train",
    "symptom": "rel_err>0.1",
    "culprit_op": "linear",
    "culprit_fqn": "down",
    "must_keep_fp32": ["down"],
    "hazard": "fp8-outlier-per-tensor-scale",
    "safe": "per-row scaling, or keep the layer in bf16; weight-only fp8 is fine",
    "safe_modes": ["bf16", "fp8-weight-only"],
    "safe_tol": 0.06,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm = nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, h):
        return self.norm(self.down(h))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    h = torch.randn(32, 64) * 0.3
    h[5, 9] = 6.0e4
    return (h,)
