import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "param-nonfinite",
    "culprit_op": "<optimizer.step>",
    "line": "torch.rsqrt(st + 1e-12)",
    "steps": 2,
    "why": "A home-made optimizer adds 1e-12 inside the root to a half second moment that underflowed to zero.",
}


class TinyAdam(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                st = self.state[p].setdefault("sq", torch.zeros_like(p))
                st.mul_(0.95).addcmul_(p.grad, p.grad, value=0.05)
                p.add_(p.grad * torch.rsqrt(st + 1e-12), alpha=-group["lr"])


class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(2, 20), nn.utils.parametrizations.weight_norm(nn.Linear(20, 1))

    def forward(self, xy):
        return self.l2(torch.sin(6.0 * self.l1(xy)))


def build_model():
    torch.manual_seed(0)
    return Siren()


def example_inputs():
    torch.manual_seed(1)
    return (torch.rand(50, 2),)


def loss(output):
    return 1e-3 * (output.float() - 0.2).square().mean()


def make_optimizer(params):
    return TinyAdam(params, lr=1e-3)
