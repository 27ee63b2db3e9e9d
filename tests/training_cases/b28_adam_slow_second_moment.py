import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "param-nonfinite",
    "culprit_op": "<optimizer.step>",
    "line": "betas=(0.9, 0.9999)",
    "steps": 2,
    "why": "With beta2 = 0.9999 the first second moment is 1e-4 * g^2, zero in half for g below 0.01, and eps 1e-8 is zero too.",
}


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Hardswish(), nn.ConvTranspose2d(4, 1, 2, stride=2))


def example_inputs():
    torch.manual_seed(1)
    return (torch.rand(3, 1, 8, 8) * 0.02,)


def loss(output):
    return output.float().sub(0.1).pow(2).mean()


def make_optimizer(params):
    return torch.optim.NAdam(params, lr=1e-3, betas=(0.9, 0.9999))
