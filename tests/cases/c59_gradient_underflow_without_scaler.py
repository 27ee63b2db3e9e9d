"""C59 gradient_underflow_without_scaler (loss-scaling)

Reported in: engichang1467/Open-Rig3R issue 35

Half precision backward without loss scaling. A mean over many outputs and a small loss weight
make the incoming gradient about 1e-8, below the smallest half subnormal, so every parameter
gradient is exactly zero and training silently stalls.
"""

import torch
from torch import nn

SOURCE = "engichang1467/Open-Rig3R issue 35"
KIND = "loss-scaling"
EXPECT = {
    "naive": "fp16",
    "symptom": "zero-grad",
    "culprit_op": "linear",
    "must_keep_fp32": ["<loss-scaling>"],
    "hazard": "gradient-underflow-fp16",
    "safe": "bf16; or fp16 with loss scaling (GradScaler)",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(256, 32),)


def loss(output):
    return 1e-4 * output.float().pow(2).mean()
