"""C35 rope_positions_in_bf16 (integer-precision)

Reported in: huggingface/candle PR 3520

Rotary embedding that builds positions and inverse frequencies in the activation dtype. bf16
stores integers exactly only to 256, so far positions land on their neighbours and the angle
(position times frequency) is off by many radians.
"""

import torch
from torch import nn

SOURCE = "huggingface/candle PR 3520"
KIND = "integer-precision"
EXPECT = {
    "naive": "bf16",
    "symptom": "rel_err>0.1",
    "culprit_op": "mul",
    "must_keep_fp32": ["arange", "inv_freq", "mul", "cos", "sin"],
    "hazard": "position-index-precision",
    "safe": "fp32 positions, frequencies, angle and cos/sin; result may be bf16",
    "safe_modes": [],
}


def rotate(x, ang):
    c, s = ang.cos(), ang.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.fc = nn.Linear(d, d, bias=False)
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, d, 2) / d))

    def forward(self, x):
        t = torch.arange(x.shape[1], dtype=x.dtype).unsqueeze(-1)
        return rotate(self.fc(x), t * self.inv_freq)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(1, 1500, 32),)
