import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "autocast-bf16",
    "harmless": True,
    "why": "The hand-written backward casts what it saved to the dtype of the incoming gradient before multiplying.",
}


class Proj(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return F.linear(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = (t.to(g.dtype) for t in ctx.saved_tensors)
        return g @ w, g.t() @ x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 10) * 0.3)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x):
        return self.head(Proj.apply(x, self.w))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(9, 10),)


def loss(output):
    return output.float().pow(2).mean()


def make_optimizer(params):
    return torch.optim.SGD(params, lr=0.3)
