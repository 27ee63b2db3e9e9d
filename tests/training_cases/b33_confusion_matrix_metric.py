import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "buffer_stuck",
    "state": "confusion",
    "steps": 700,
    "stuck_part": 0.99,
    "culprit_op": "index_put",
    "line": "accumulate=True",
    "why": "Counts kept in a float matrix stop at 256 in bf16 because 256 + 1 rounds back.",
}


class WithMetric(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 10), nn.Mish(), nn.Linear(10, k))
        self.register_buffer("confusion", torch.zeros(k, k))

    def forward(self, x, label):
        logits = self.net(x)
        one = torch.ones((), dtype=self.confusion.dtype)
        self.confusion.index_put_((label, logits.argmax(-1)), one, accumulate=True)
        return logits


def build_model():
    torch.manual_seed(0)
    return WithMetric()


def example_inputs():
    torch.manual_seed(1)
    return torch.randn(3, 5), torch.arange(3)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(3))
