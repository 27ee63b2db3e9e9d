import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "conv2d",
    "line": "self.first(img)",
    "param": "first",
    "why": "Weight gradients of the first convolution sum pixel values up to 255 times errors over the whole image, past 65504.",
}


class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, img):
        return self.last(F.elu(self.first(img)))


def build_model():
    torch.manual_seed(0)
    return AE()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 256, (4, 1, 48, 48)).float(),)


def loss(output):
    return F.smooth_l1_loss(output.float(), torch.full_like(output.float(), 128.0), reduction="sum")
