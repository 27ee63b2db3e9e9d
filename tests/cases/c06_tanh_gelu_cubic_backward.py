"""C06 tanh_gelu_cubic_backward (activation-overflow)

Reported in: huggingface/optimum-graphcore PR 296

Hand-written tanh GELU with an explicit cube. For |x| above about 40 the cube is inf in half.
The forward hides it (tanh saturates) but the backward multiplies a zero tanh slope by an
infinite 3*x^2, giving NaN gradients. A forward-only audit calls this harmless.
"""

import torch
from torch import nn

SOURCE = "huggingface/optimum-graphcore PR 296"
KIND = "activation-overflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "pow",
    "must_keep_fp32": ["pow", "mul", "add", "tanh"],
    "hazard": "hidden-intermediate-overflow",
    "safe": "bf16; or the fused F.gelu(approximate='tanh')",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.fc = nn.Linear(d, d)
        with torch.no_grad():
            self.fc.weight.mul_(250.0)

    def forward(self, x):
        h = self.fc(x)
        return 0.5 * h * (1.0 + torch.tanh(0.7978845608 * (h + 0.044715 * torch.pow(h, 3))))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(8, 32) * 2,)


def loss(output):
    return output.float().mean()
