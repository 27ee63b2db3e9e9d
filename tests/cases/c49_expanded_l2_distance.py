"""C49 expanded_l2_distance (cancellation)

Reported in: NVIDIA/cuvs issue 991

Squared distance expanded as |x|^2 + |y|^2 - 2xy. For near neighbours the three terms cancel; in
half the result is often slightly negative and the square root is NaN.
"""

import torch
from torch import nn

SOURCE = "NVIDIA/cuvs issue 991"
KIND = "cancellation"
EXPECT = {
    "naive": "fp16",
    "symptom": "nan",
    "culprit_op": "sqrt",
    "must_keep_fp32": ["pow", "sum", "matmul", "mul", "add", "sub", "sqrt", "enc"],
    "hazard": "catastrophic-cancellation",
    "safe": "fp32 for the expansion (inputs included), or the direct difference form",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(32, 32)

    def forward(self, x, y):
        a, b = self.enc(x), self.enc(y)
        d2 = a.pow(2).sum(-1).unsqueeze(1) + b.pow(2).sum(-1).unsqueeze(0) - 2.0 * torch.matmul(a, b.transpose(0, 1))
        return torch.sqrt(d2 + 1e-6)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    x = torch.randn(24, 32)
    return (x, x + 0.01 * torch.randn(24, 32))
