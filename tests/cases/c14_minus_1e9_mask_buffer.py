"""C14 minus_1e9_mask_buffer (constant-out-of-range)

Reported in: jundot/omlx PR 3633

The mask penalty is a registered buffer holding -1e9 and is applied as (1 - mask) * penalty.
Casting the module turns the buffer into -inf, and for unmasked keys 0 * -inf is NaN, so every
row is lost. The problem is visible statically from the buffer value alone.
"""

import torch
from torch import nn

SOURCE = "jundot/omlx PR 3633"
KIND = "constant-out-of-range"
EXPECT = {
    "naive": "fp16",
    "symptom": "nan",
    "culprit_op": "mul",
    "must_keep_fp32": ["penalty", "mul", "add", "softmax"],
    "hazard": "buffer-out-of-range-fp16",
    "safe": "bf16; or keep the buffer and masking in fp32",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.fc = nn.Linear(d, d)
        self.register_buffer("penalty", torch.tensor(-1e9))

    def forward(self, x, mask):
        h = self.fc(x)
        s = torch.matmul(h, h.transpose(-2, -1)) + (1.0 - mask[:, None, :]) * self.penalty
        return torch.matmul(s.softmax(-1), h)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 5, 16), torch.tensor([[1.0, 1, 1, 1, 0], [1, 1, 0, 0, 0]]))
