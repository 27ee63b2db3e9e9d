"""C30 bce_on_saturated_sigmoid (log-of-zero)

Reported in: pytorch/pytorch issue 61098 (same cause: Megvii-BaseDetection/YOLOX issue 336)

Sigmoid followed by plain binary cross entropy. In bf16 any logit above about 6.2 gives exactly
1.0, so the loss for a confident mistake jumps to the clamp value of 100 and its gradient is
zero or huge. CUDA autocast forbids the pair; CPU autocast and a plain cast run it silently.
"""

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = "pytorch/pytorch issue 61098 (same cause: Megvii-BaseDetection/YOLOX issue 336)"
KIND = "log-of-zero"
EXPECT = {
    "naive": "bf16",
    "symptom": "rel_err>0.1",
    "culprit_op": "binary_cross_entropy",
    "must_keep_fp32": ["sigmoid", "binary_cross_entropy"],
    "hazard": "saturated-sigmoid-bce",
    "safe": "binary_cross_entropy_with_logits, or sigmoid+BCE in fp32",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
        nn.init.constant_(self.fc.bias, 7.0)

    def forward(self, x, y):
        return F.binary_cross_entropy(torch.sigmoid(self.fc(x)), y, reduction="none")


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(32, 8), (torch.rand(32, 1) > 0.5).float())
