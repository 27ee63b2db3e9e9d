import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "update_lost",
    "culprit_op": "<optimizer.step>",
    "line": "torch.optim.Adam(",
    "param": "cell.weight",
    "steps": 20,
    "why": "Adam moves each weight by about 1e-5 per step, a small part of the bf16 spacing around 0.1 to 0.5.",
}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 8)
        self.cell = nn.GRUCell(8, 8)
        self.out = nn.Linear(8, 5)
        for p in self.cell.parameters():
            nn.init.uniform_(p, 0.1, 0.5)
            p.data.mul_(torch.where(torch.rand_like(p) > 0.5, 1.0, -1.0))

    def forward(self, ids):
        h = torch.zeros_like(self.emb(ids[:, 0]))
        outs = []
        for t in range(ids.size(1)):
            h = self.cell(self.emb(ids[:, t]), h)
            outs.append(self.out(h))
        return torch.stack(outs, 1)


def build_model():
    torch.manual_seed(0)
    return Tagger()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 20, (6, 5)),)


def loss(output):
    return F.cross_entropy(output.float().reshape(-1, 5), torch.arange(30) % 5)


def make_optimizer(params):
    return torch.optim.Adam(params, lr=1e-5)
