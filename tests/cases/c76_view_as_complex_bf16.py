"""C76 view_as_complex_bf16 (unsupported-op)

Reported in: pytorch/pytorch issue 95100

Rotary embedding through complex numbers: pairs of channels are viewed as complex. There is no
bf16 complex type, so the view raises (half has one but with poor op coverage).
"""

import torch
from torch import nn

SOURCE = "pytorch/pytorch issue 95100"
KIND = "unsupported-op"
EXPECT = {
    "naive": "bf16",
    "symptom": "crash",
    "error": "view_as_complex",
    "culprit_op": "view_as_complex",
    "must_keep_fp32": ["view_as_complex", "mul", "view_as_real", "polar", "ang"],
    "hazard": "no-complex-bf16",
    "safe": "upcast to fp32 around the complex arithmetic, or real-valued cos/sin form",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.fc = nn.Linear(d, d)
        self.register_buffer("ang", torch.arange(12.0)[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d))

    def forward(self, x):
        h = torch.view_as_complex(self.fc(x).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(h * torch.polar(torch.ones_like(self.ang), self.ang)).flatten(-2)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 12, 16),)
