"""C18 dice_pixel_sum (sum-overflow)

Reported in: qubvel-org/segmentation_models.pytorch issue 463

Soft dice over a 300x300 mask. Intersection and cardinality are sums over 90000 pixels that pass
65504, so the score is inf/inf. Nothing in the per-pixel tensors is out of range.
"""

import torch
from torch import nn

SOURCE = "qubvel-org/segmentation_models.pytorch issue 463"
KIND = "sum-overflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "nan",
    "culprit_op": "sum",
    "must_keep_fp32": ["mul", "sum", "add", "div"],
    "hazard": "sum-overflow-fp16",
    "safe": "bf16; or fp32 for the sums and the ratio",
    "safe_modes": ["bf16"],
    "safe_tol": 0.1,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3, padding=1)
        nn.init.constant_(self.conv.bias, 6.0)

    def forward(self, img, target):
        p = torch.sigmoid(self.conv(img))
        inter = (p * target).sum((1, 2, 3))
        return 1.0 - (2.0 * inter) / (p.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1.0)


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(1, 3, 300, 300), (torch.rand(1, 1, 300, 300) > 0.05).float())


def loss(output):
    return output.float().mean()
