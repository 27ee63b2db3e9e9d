import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "autocast-fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "sqrt",
    "line": ".clamp(min=0).sqrt()",
    "why": "The similarity of a near-duplicate pair rounds to 1 in the half matmul, so 2 - 2s is 0 and the root has an infinite slope there.",
}


class Triplet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(2, 6, 3), nn.Tanh(), nn.Flatten(1), nn.Linear(36, 8))

    def forward(self, a, p, n):
        a, p, n = (F.normalize(self.enc(t).float(), dim=-1) for t in (a, p, n))
        s = torch.stack([a.unsqueeze(1) @ p.unsqueeze(2), a.unsqueeze(1) @ n.unsqueeze(2)]).flatten(1)
        d = (2 - 2 * s).clamp(min=0).sqrt()
        return d[0] - d[1]


def build_model():
    torch.manual_seed(0)
    return Triplet()


def example_inputs():
    torch.manual_seed(1)
    a = torch.randn(6, 2, 8)
    return a, a + 0.02 * torch.randn(6, 2, 8), torch.randn(6, 2, 8)


def loss(output):
    return (output.float() + 2.0).clamp(min=0).mean()
