import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "log of a saturated probability is computed for logging under no_grad and never enters the loss.",
}


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(6, 4), nn.Linear(4, 2)
        nn.init.constant_(self.fc.bias, 7.0)

    def forward(self, x):
        g = torch.sigmoid(self.fc(x))
        with torch.no_grad():
            log_off = torch.log(1 - g).clamp(min=-20)
        return self.out(g), log_off


def build_model():
    torch.manual_seed(0)
    return Gate()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(9, 6),)


def loss(output):
    return F.cross_entropy(output[0].float(), torch.arange(9) % 2)
