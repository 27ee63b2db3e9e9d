import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "param-nonfinite",
    "culprit_op": "<optimizer.step>",
    "line": "torch.optim.RMSprop(",
    "steps": 2,
    "why": "The mean square of gradients around 1e-4 and the default eps 1e-8 are both zero in half, so RMSprop divides by zero.",
}


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 10, batch_first=True)
        self.head = nn.Linear(10, 1)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.head(out[:, -1])


def build_model():
    torch.manual_seed(0)
    return Forecaster()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(16, 8, 3) * 0.1,)


def loss(output):
    return F.huber_loss(output.float(), output.float().detach() + 0.002)


def make_optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-4)
