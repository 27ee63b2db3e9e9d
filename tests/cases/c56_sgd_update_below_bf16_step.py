"""C56 sgd_update_below_bf16_step (optimizer-precision)

Reported in: pytorch/ao PR 1124

Pure bf16 training with a small learning rate: each update is far below half the spacing of bf16
around the weight, so round-to-nearest leaves the weight exactly where it was, step after step.
The loss looks healthy and simply does not move.
"""

import torch
from torch import nn

SOURCE = "pytorch/ao PR 1124"
KIND = "optimizer-precision"
EXPECT = {
    "naive": "bf16",
    "symptom": "update_lost",
    "steps": 50,
    "culprit_op": "<optimizer.step>",
    "must_keep_fp32": ["<master-weights>"],
    "hazard": "update-lost-to-rounding",
    "safe": "fp32 master weights, stochastic rounding or compensated updates",
    "safe_modes": ["autocast-bf16"],
}


def build_model():
    torch.manual_seed(0)
    net = nn.Linear(16, 8)
    with torch.no_grad():
        net.weight.add_(2.0 * net.weight.sign())
        net.bias.fill_(1.0)
    return net


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(32, 16),)


def make_optimizer(params):
    return torch.optim.SGD(params, lr=1e-5)


def loss(output):
    return output.float().pow(2).mean()
