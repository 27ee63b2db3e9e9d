"""C74 custom_function_backward_under_autocast (dtype-mismatch)

Reported in: pytorch/pytorch issue 38487 (also 46178)

A hand-written autograd Function doing a matrix product. Autocast casts inside its forward, but
the saved weight is fp32 and the incoming gradient is bf16, so the hand-written backward
multiplies mismatching tensors. The custom_fwd/custom_bwd decorators exist for this.
"""

import torch
from torch import nn

SOURCE = "pytorch/pytorch issue 38487 (also 46178)"
KIND = "dtype-mismatch"
EXPECT = {
    "naive": "autocast-bf16",
    "symptom": "crash-backward",
    "error": "dtype",
    "culprit_op": "<custom-function>",
    "must_keep_fp32": [],
    "hazard": "custom-autograd-dtype",
    "safe": "custom_fwd(cast_inputs=...) or a plain module; fp32 around the Function",
    "safe_modes": ["bf16"],
}


class MyLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.mm(x, w.t())

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return torch.mm(g, w), torch.mm(g.t(), x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = nn.Parameter(torch.randn(8, 16) * 0.2), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(MyLinear.apply(x, self.w))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(5, 16),)


def loss(output):
    return output.float().pow(2).mean()
