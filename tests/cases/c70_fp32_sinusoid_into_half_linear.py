"""C70 fp32_sinusoid_into_half_linear (dtype-mismatch)

Reported in: huggingface/diffusers PR 3137

A parameter-free sinusoidal embedding always returns fp32 and feeds a linear layer whose weights
were cast to half: the product has mismatching operands. Autocast would insert the cast; a plain
cast does not.
"""

import torch
from torch import nn

SOURCE = "huggingface/diffusers PR 3137"
KIND = "dtype-mismatch"
EXPECT = {
    "naive": "fp16",
    "symptom": "crash",
    "error": "same dtype",
    "culprit_op": "linear",
    "culprit_fqn": "proj",
    "must_keep_fp32": ["cos", "sin", "mul"],
    "hazard": "mixed-dtype-linear",
    "safe": "autocast, or cast the embedding to the weight dtype (keep the sinusoid itself fp32)",
    "safe_modes": ["autocast-bf16"],
}


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.proj, self.d = nn.Linear(d, 16), d

    def forward(self, x, t):
        f = torch.exp(-9.21 * torch.arange(self.d // 2, dtype=torch.float32) / (self.d // 2))
        ang = t[:, None] * f
        return x + self.proj(torch.cat((ang.cos(), ang.sin()), -1))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(3, 16), torch.tensor([1, 250, 999]))
