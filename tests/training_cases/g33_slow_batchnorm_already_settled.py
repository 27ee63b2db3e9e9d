import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "harmless": True,
    "steps": 150,
    "why": "Momentum is tiny and the statistics do not move in bf16, but the batch is standardised already, so they need not.",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(6, momentum=0.001)
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(torch.tanh(self.bn(x)))


def build_model():
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        net.bn.running_mean.fill_(0.5)
    return net


def example_inputs():
    torch.manual_seed(1)
    x = torch.randn(64, 6)
    return ((x - x.mean(0)) / x.std(0) + 0.5,)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(64) % 3)
