import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "autocast-fp16",
    "symptom": "buffer_nonfinite",
    "state": "bn.running_var",
    "steps": 1,
    "culprit_op": "square",
    "line": "torch.square(F.relu(",
    "why": "Conv output of 400 squared is inf in half under autocast, and batch norm folds it into its running statistics.",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        h = self.conv(x)
        h = torch.square(F.relu(h))
        return self.head(self.bn(h)).mean((2, 3))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.rand(3, 1, 8, 8) * 1500,)


def loss(output):
    return F.cross_entropy(output.float(), torch.tensor([0, 1, 0]))
