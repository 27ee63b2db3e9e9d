import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "buffer_stuck",
    "state": "target_w",
    "steps": 200,
    "stuck_part": 0.8,
    "culprit_op": "lerp",
    "line": "self.target_w.lerp_(",
    "why": "The target follows the online weights by 0.02 percent per step, less than half a unit in the last place in half.",
}


class Byol(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.online = nn.Linear(10, d, bias=False)
        self.pred = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        w = self.online.weight.detach()
        self.register_buffer("target_w", w.sign() * (1.0 + w.abs()))

    def forward(self, a, b):
        with torch.no_grad():
            self.target_w.lerp_(self.online.weight, 0.0002)
            t = F.linear(b, self.target_w)
        return F.cosine_similarity(self.pred(self.online(a)), t, dim=-1)


def build_model():
    torch.manual_seed(0)
    return Byol()


def example_inputs():
    torch.manual_seed(1)
    x = torch.randn(6, 10)
    return x, x + 0.1 * torch.randn(6, 10)


def loss(output):
    return (2 - 2 * output.float()).mean()
