import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "pow",
    "line": "light ** (1.0 / 2.4)",
    "why": "Dark radiance underflows to 0 in half; the unselected power branch then has an infinite slope that where multiplies by zero.",
}


class ToneMapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 3, 1)
        nn.init.constant_(self.conv2.bias, -13.0)
        with torch.no_grad():
            self.conv2.weight.mul_(12.0)

    def forward(self, x):
        light = self.conv2(self.conv1(x).relu()).clamp(max=0.0).exp()
        curve = 1.055 * light ** (1.0 / 2.4) - 0.055
        return torch.where(light <= 0.0031308, 12.92 * light, curve)


def build_model():
    torch.manual_seed(0)
    return ToneMapper()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 1, 9, 9) * 2,)


def loss(output):
    return F.l1_loss(output.float(), torch.full_like(output.float(), 0.5), reduction="sum")
