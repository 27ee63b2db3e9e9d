"""C66 index_put_under_autocast (dtype-mismatch)

Reported in: continue-revolution/sd-webui-animatediff issue 168 (also pytorch/pytorch PR 41035)

A result tensor is allocated in fp32 and rows are assigned from a linear layer that autocast ran
in bf16. index_put insists that source and destination agree.
"""

import torch
from torch import nn

SOURCE = "continue-revolution/sd-webui-animatediff issue 168 (also pytorch/pytorch PR 41035)"
KIND = "dtype-mismatch"
EXPECT = {
    "naive": "autocast-bf16",
    "symptom": "crash",
    "error": "Index put requires",
    "culprit_op": "index_put",
    "must_keep_fp32": ["index_put"],
    "hazard": "mixed-dtype-index-put",
    "safe": "plain bf16/fp16 cast (all operands agree), or cast the source to the destination dtype",
    "safe_modes": ["bf16", "fp16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, rows):
        out = torch.zeros_like(x)
        out[rows] = self.fc(x[rows])
        return out


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(6, 8), torch.tensor([0, 3, 4]))
