import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "param-nonfinite",
    "culprit_op": "<optimizer.step>",
    "line": "optim.Adagrad",
    "steps": 2,
    "why": "Squares of small gradients and the eps 1e-10 vanish in half, so the first Adagrad step is g / 0.",
}
from torch import optim


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Embedding(12, 8)
        self.b = nn.Bilinear(8, 8, 1)

    def forward(self, q, pos, neg):
        q, p, n = self.a(q), self.a(pos), self.a(neg)
        return self.b(q, p) - self.b(q, n)


def build_model():
    torch.manual_seed(0)
    return Ranker()


def example_inputs():
    torch.manual_seed(1)
    return tuple(torch.randint(0, 12, (10,)) for _ in range(3))


def loss(output):
    return 1e-3 * F.relu(1.0 - output.float()).mean()


def make_optimizer(params):
    return optim.Adagrad(params, lr=0.01)
