"""C44 alphas_cumprod_rounds_to_one (buffer-precision)

Reported in: huggingface/diffusers PR 3005

Denoising step using 1 - alphas_cumprod[t] as a divisor. In half the first few cumulative
products round to exactly one, so the divisor is zero. The schedule is a buffer and gets cast
with the module.
"""

import torch
from torch import nn

SOURCE = "huggingface/diffusers PR 3005"
KIND = "buffer-precision"
EXPECT = {
    "naive": "fp16",
    "symptom": "inf",
    "culprit_op": "div",
    "must_keep_fp32": ["acp", "rsub", "sub", "mul", "div"],
    "hazard": "buffer-must-stay-fp32",
    "safe": "keep the schedule buffer and its arithmetic in fp32",
    "safe_modes": ["autocast-bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        betas = torch.linspace(1e-4, 2e-2, 1000)
        self.register_buffer("acp", torch.cumprod(1 - betas, 0))
        self.eps = nn.Linear(8, 8)

    def forward(self, x, t):
        a = self.acp[t][:, None]
        return (x - a * self.eps(x)) / (1.0 - a)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(3, 8), torch.tensor([0, 1, 500]))
