import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "The same auxiliary weight on a sum over pixels, not a mean, keeps the gradients near 1e-3.",
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
        return self.out(torch.cat([self.up(F.silu(self.mid(h))), x], 1))


def build_model():
    torch.manual_seed(0)
    return TinyUNet()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 3, 32, 32) * 0.5,)


def loss(output):
    return 0.003 * F.mse_loss(output.float(), torch.full(output.shape, 0.1), reduction="sum")
