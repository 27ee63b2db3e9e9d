import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "update_lost",
    "culprit_op": "<optimizer.step>",
    "line": "torch.optim.SGD(",
    "param": "norm",
    "steps": 30,
    "why": "Norm gains sit at 1.0 where half spacing is 5e-4 to 1e-3; updates of 1e-5 are rounded away every step.",
}


class Encoder(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.proj = nn.Linear(6, d)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.norm1 = nn.LayerNorm(d, bias=False)
        self.norm2 = nn.LayerNorm(d, bias=False)
        self.fc = nn.Linear(d, d)
        self.cls = nn.Linear(d, 4)

    def forward(self, x):
        x = self.proj(x)
        x = self.norm1(x + self.att(x, x, x)[0])
        x = self.norm2(x + torch.tanh(self.fc(x)))
        return self.cls(x.amax(1))


def build_model():
    torch.manual_seed(0)
    return Encoder()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(8, 5, 6),)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(8) % 4)


def make_optimizer(params):
    return torch.optim.SGD(params, lr=3e-4)
