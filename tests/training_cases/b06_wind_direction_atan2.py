import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "atan2",
    "line": "torch.atan2(v, u)",
    "why": "The derivative of atan2 divides by u*u + v*v, about 1e-7 for components of 4e-4, and the reciprocal of that is inf in half.",
}


class Wind(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 12, batch_first=True)
        self.head = nn.Linear(12, 2)
        with torch.no_grad():
            self.head.weight.mul_(2e-3)
            self.head.bias.mul_(2e-3)

    def forward(self, seq):
        h, _ = self.rnn(seq)
        u, v = self.head(h[:, -1]).unbind(-1)
        return torch.atan2(v, u)


def build_model():
    torch.manual_seed(0)
    return Wind()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(6, 7, 5),)


def loss(output):
    return (1 - torch.cos(output.float() - 0.4)).mean()
