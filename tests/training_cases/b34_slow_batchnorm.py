import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "buffer_stuck",
    "state": "net.1.running_var",
    "steps": 200,
    "stuck_part": 0.6,
    "culprit_op": "batch_norm",
    "line": "momentum=0.001",
    "why": "With momentum 0.001 each change of the running variance, at most 0.001, is below half the bf16 spacing at 1.0.",
}


class SlowBN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=0.001), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        )

    def forward(self, x):
        return self.net(x)


def build_model():
    torch.manual_seed(0)
    return SlowBN()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(5, 2, 6, 6),)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(5) % 3)
