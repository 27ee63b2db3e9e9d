import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "sqrt",
    "line": "(var + 1e-8).sqrt()",
    "why": "The variance over the batch (1e-9) and the eps 1e-8 are both zero in half, so sqrt is taken at 0 and its infinite slope meets a zero.",
}


class MinibatchStddev(nn.Module):
    def forward(self, x):
        b, c, h, w = x.shape
        centred = x - x.mean(0, keepdim=True)
        var = centred.pow(2).mean(0)
        s = (var + 1e-8).sqrt()
        s = s.mean().reshape(1, 1, 1, 1).expand(b, 1, h, w)
        return torch.cat((x, s), 1)


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.LeakyReLU(0.2),
        MinibatchStddev(),
        nn.Conv2d(7, 4, 3, stride=2),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(36, 1),
    )


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(1, 3, 8, 8).expand(4, 3, 8, 8) * 0.05 + torch.randn(4, 3, 8, 8) * 5e-5,)


def loss(output):
    return F.softplus(-output.float()).mean()
