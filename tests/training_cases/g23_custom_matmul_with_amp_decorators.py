import torch
from torch import nn

EXPECT = {
    "naive": "autocast-bf16",
    "harmless": True,
    "why": "custom_fwd casts the inputs to one type before they are saved, so the backward multiplies equal dtypes.",
}
from torch.amp import custom_bwd, custom_fwd


class MatMul(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)
    def forward(ctx, a, w):
        ctx.save_for_backward(a, w)
        return a.mm(w)

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, g):
        a, w = ctx.saved_tensors
        return g.mm(w.t()), a.t().mm(g)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = nn.Parameter(torch.randn(12, 8) * 0.3), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.relu(MatMul.apply(x, self.w)))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(9, 12),)


def loss(output):
    return output.float().pow(2).mean()
