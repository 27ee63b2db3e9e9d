import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "update_lost",
    "culprit_op": "<optimizer.step>",
    "line": "weight_decay=5e-4",
    "param": "side",
    "steps": 30,
    "why": "The only force on the closed branch is decay, lr * 5e-4 * w = 5e-5 * w, under half a unit in the last place of w in half.",
}


class GatedConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Conv1d(2, 4, 3, padding=1)
        self.side = nn.Conv1d(2, 4, 1, bias=False)
        self.register_buffer("open", torch.zeros(4, 1))
        self.fc = nn.Linear(4, 2)
        with torch.no_grad():
            self.side.weight.copy_(self.side.weight.sign() * (0.3 + self.side.weight.abs()))

    def forward(self, x):
        y = F.relu(self.main(x)) + self.open * self.side(x)
        return self.fc(y.mean(-1))


def build_model():
    torch.manual_seed(0)
    return GatedConv()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(5, 2, 10),)


def loss(output):
    return F.mse_loss(output.float(), torch.zeros_like(output.float()))


def make_optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.0, weight_decay=5e-4)
