import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "buffer_nonfinite",
    "state": "a.u",
    "steps": 1,
    "culprit_op": "mv",
    "line": "torch.mv(self.weight, v)",
    "why": "The unnormalised power iteration reaches 1e5, inf in half, and inf / inf is stored as NaN in the vector kept between steps.",
}


class SpectralLinear(nn.Module):
    def __init__(self, i=16, o=12):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(o, i) * 10 + 15)
        self.register_buffer("u", torch.ones(o))

    def forward(self, x):
        with torch.no_grad():
            v = torch.mv(self.weight.t(), self.u)
            u = torch.mv(self.weight, v)
            self.u.copy_(u / u.abs().max())
        return F.linear(x, self.weight / 280.0)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = SpectralLinear(), nn.Linear(12, 1)

    def forward(self, x):
        return self.b(F.leaky_relu(self.a(x)))


def build_model():
    torch.manual_seed(0)
    return Critic()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 16),)


def loss(output):
    return F.relu(1 - output.float()).mean()
