import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "zero-grad",
    "culprit_op": "<loss-scaling>",
    "line": "3e-5 * F.mse_loss(",
    "why": "A mean over 32768 pixels times a small auxiliary weight sends gradients near 1e-10 into a half graph without a loss scale.",
}


class TinyUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(11, 8, 1)

    def forward(self, x):
        h = F.silu(self.down(x))
        h = self.up(F.silu(self.mid(h)))
        return self.out(torch.cat([h, x], 1))


def build_model():
    torch.manual_seed(0)
    return TinyUNet()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 3, 32, 32) * 0.5,)


def loss(output):
    out = output.float()
    return 3e-5 * F.mse_loss(out, torch.full_like(out, 0.1))
