import torch
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "zero-grad",
    "culprit_op": "sigmoid",
    "line": "torch.sigmoid(self.rec(h)",
    "param": "start",
    "why": "Twenty sigmoid steps shrink the gradient of the initial state below the smallest half subnormal.",
}


class SigmoidRNN(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.start = nn.Linear(5, d)
        self.rec, self.inp, self.read = nn.Linear(d, d), nn.Linear(5, d, bias=False), nn.Linear(d, 2)

    def forward(self, seq):
        h = self.start(seq[:, 0])
        for t in range(1, seq.shape[1]):
            h = torch.sigmoid(self.rec(h) + self.inp(seq[:, t]))
        return self.read(h)


def build_model():
    torch.manual_seed(0)
    return SigmoidRNN()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 21, 5),)


def loss(output):
    return output.float().pow(2).mean()
