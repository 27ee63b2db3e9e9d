"""C53 batch_norm_statistics_poisoned_under_amp (state-stagnation)

Reported in: pytorch/pytorch issue 115500

Under half autocast a linear layer overflows for one batch. Batch norm itself runs in fp32, but
it has already been handed inf, so its running mean becomes non-finite and every later
evaluation is ruined even when a loss scaler skips the bad step.
"""

import torch
from torch import nn

SOURCE = "pytorch/pytorch issue 115500"
KIND = "state-stagnation"
EXPECT = {
    "naive": "autocast-fp16",
    "symptom": "buffer_nonfinite",
    "state": "1.running_mean",
    "steps": 1,
    "culprit_op": "linear",
    "culprit_fqn": "0",
    "must_keep_fp32": ["0", "1"],
    "hazard": "activation-overflow-fp16",
    "safe": "bf16 autocast; or the linear layer before batch norm in fp32",
    "safe_modes": ["autocast-bf16"],
}

TRAIN_MODE = True


def build_model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    with torch.no_grad():
        net[0].weight.abs_()
    return net


def example_inputs():
    torch.manual_seed(1)
    return (torch.rand(8, 10) * 60000.0,)
