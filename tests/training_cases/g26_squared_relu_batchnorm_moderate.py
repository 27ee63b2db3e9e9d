import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "autocast-fp16",
    "harmless": True,
    "why": "The squares reach only tens, so batch norm receives finite values.",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.head(self.bn(torch.square(F.relu(self.conv(x))))).amax((2, 3))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(3, 1, 8, 8) * 4,)


def loss(output):
    return F.cross_entropy(output.float(), torch.tensor([0, 1, 0]))
