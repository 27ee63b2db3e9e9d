"""C33 p3_norm_of_small_values (boundary-gradient)

Reported in: pytorch/pytorch issue 43211

The 3-norm of values around 1e-4. Its derivative divides by norm**2, about 1e-8, which half
rounds to zero, so the gradient is 0/0 while the forward is exact.
"""

import torch
from torch import nn

SOURCE = "pytorch/pytorch issue 43211"
KIND = "boundary-gradient"
EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "linalg_vector_norm",
    "must_keep_fp32": ["linalg_vector_norm"],
    "hazard": "norm-gradient-underflow",
    "safe": "bf16; or fp32 norm",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4, bias=False)
        with torch.no_grad():
            self.fc.weight.mul_(1e-3)

    def forward(self, x):
        return torch.linalg.vector_norm(self.fc(x), ord=3, dim=-1)


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(5, 8) * 0.2,)


def loss(output):
    return output.float().mean()
