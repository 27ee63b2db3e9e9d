"""C20 manhattan_distance_long_vectors (sum-overflow)

Reported in: Lightning-AI/torchmetrics issue 1380

Pairwise L1 distance between flattened feature maps. The sum of absolute differences over tens
of thousands of entries leaves the half range.
"""

import torch
from torch import nn

SOURCE = "Lightning-AI/torchmetrics issue 1380"
KIND = "sum-overflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "inf",
    "culprit_op": "sum",
    "must_keep_fp32": ["sub", "abs", "sum"],
    "hazard": "sum-overflow-fp16",
    "safe": "bf16; or fp32 accumulation and output",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, a, b):
        fa, fb = self.conv(a).flatten(1), self.conv(b).flatten(1)
        return (fa[:, None] - fb[None]).abs().sum(-1)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 3, 64, 64) * 6, torch.randn(3, 3, 64, 64) * 6)
