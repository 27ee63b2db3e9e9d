"""C10 masked_fill_minus_1e9 (constant-out-of-range)

Reported in: NVIDIA/apex issue 1052

Attention mask written with masked_fill(mask, -1e9). The literal does not fit in half and
PyTorch refuses the fill outright. bf16 has the range and is fine.
"""

import torch
from torch import nn

SOURCE = "NVIDIA/apex issue 1052"
KIND = "constant-out-of-range"
EXPECT = {
    "naive": "fp16",
    "symptom": "crash",
    "error": "without overflow",
    "culprit_op": "masked_fill",
    "must_keep_fp32": ["masked_fill", "softmax"],
    "hazard": "constant-out-of-range-fp16",
    "safe": "bf16; or use the dtype's own minimum / -inf",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.qkv, self.d = nn.Linear(d, 3 * d), d

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        att = torch.matmul(q * self.d**-0.5, k.transpose(-2, -1))
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return torch.matmul(att.masked_fill(~keep, -1e9).softmax(-1), v)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 10, 32),)
