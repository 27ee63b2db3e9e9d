"""C27 log_with_tiny_eps (log-of-zero)

Reported in: rwightman/efficientdet-pytorch issue 291

Box encoder takes log(size ratio + 1e-8). Degenerate boxes have a zero ratio, which fp32 turns
into about -18 but half into -inf because the 1e-8 disappears.
"""

import torch
from torch import nn

SOURCE = "rwightman/efficientdet-pytorch issue 291"
KIND = "log-of-zero"
EXPECT = {
    "naive": "fp16",
    "symptom": "inf",
    "culprit_op": "log",
    "must_keep_fp32": ["div", "add", "log"],
    "hazard": "log-of-underflowed-eps",
    "safe": "bf16; or eps 1e-6 / fp32 log",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, boxes, anchors):
        wh = (boxes[:, 2:] - boxes[:, :2]) / (anchors[:, 2:] - anchors[:, :2])
        return torch.log(wh + 1e-8)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    b = torch.tensor([[2.0, 2, 10, 12], [5, 5, 5, 9]])
    a = torch.tensor([[0.0, 0, 8, 8], [4, 4, 12, 12]])
    return (b, a)
