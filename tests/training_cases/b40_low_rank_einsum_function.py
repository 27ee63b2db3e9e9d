import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "autocast-bf16",
    "symptom": "crash-backward",
    "culprit_op": "<custom-function>",
    "line": "torch.bmm(grad, b.transpose(1, 2))",
    "why": "Autocast makes the product bf16 but the saved factor is fp32, so the hand-written backward multiplies two dtypes.",
}


class BatchedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.bmm(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        ga = torch.bmm(grad, b.transpose(1, 2))
        gb = torch.bmm(a.transpose(1, 2), grad)
        return ga, gb


class Attn(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.q, self.mem = nn.Linear(d, d), nn.Parameter(torch.randn(1, d, 5) * 0.3)

    def forward(self, x):
        scores = BatchedProduct.apply(F.layer_norm(x, x.shape[-1:]), self.mem.expand(x.shape[0], -1, -1))
        return scores.softmax(-1) @ self.q(x)[:, :5]


def build_model():
    torch.manual_seed(0)
    return Attn()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 6, 8),)


def loss(output):
    return output.float().pow(2).mean()
