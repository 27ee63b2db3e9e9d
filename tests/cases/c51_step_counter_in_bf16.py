"""C51 step_counter_in_bf16 (state-stagnation)

Reported in: pytorch/xla PR 2425 (same limit: pytorch/executorch PR 20090)

A float buffer counts calls and accumulates a running total. Cast to bf16 the counter stops at
256 because 256 + 1 rounds back to 256, while code that divides by the true number of steps
keeps going.
"""

import torch
from torch import nn

SOURCE = "pytorch/xla PR 2425 (same limit: pytorch/executorch PR 20090)"
KIND = "state-stagnation"
EXPECT = {
    "naive": "bf16",
    "symptom": "buffer_stuck",
    "state": "count",
    "steps": 400,
    "culprit_op": "add",
    "must_keep_fp32": ["count", "total"],
    "hazard": "accumulator-stagnation",
    "safe": "bf16 with counter/total buffers in fp32 (autocast leaves buffers alone)",
    "safe_modes": ["autocast-bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        y = self.fc(x)
        self.count.add_(1.0)
        self.total.add_(y.detach().abs().mean(0))
        return y


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(3, 4),)
