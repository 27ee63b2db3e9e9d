import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "param-nonfinite",
    "culprit_op": "<optimizer.step>",
    "line": "torch.optim.Adamax(",
    "param": "pos",
    "steps": 1,
    "why": "Positions past the sequence have zero gradient; Adamax protects them by eps 1e-8, which is zero in half, giving 0/0.",
}


class Classifier(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.tok = nn.Embedding(15, d)
        self.pos = nn.Parameter(torch.randn(12, d) * 0.1)
        self.layer = nn.TransformerEncoderLayer(d, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, 3)

    def forward(self, ids):
        h = self.tok(ids) + self.pos[: ids.shape[1]]
        return self.out(self.layer(h)[:, 0])


def build_model():
    torch.manual_seed(0)
    return Classifier()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 15, (6, 7)),)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(6) % 3)


def make_optimizer(params):
    return torch.optim.Adamax(params, lr=1e-3)
