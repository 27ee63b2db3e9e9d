import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "buffer_nonfinite",
    "state": "amax",
    "steps": 1,
    "culprit_op": "mul",
    "line": "gate * up",
    "why": "The product of two activations of several hundred is inf in half; the bounded nonlinearity hides it but the recorded maximum stays inf.",
}


class ObservedGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.v, self.o = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("amax", torch.zeros(()))

    def forward(self, x):
        gate, up = F.relu(self.w(x)), self.v(x)
        h = gate * up
        with torch.no_grad():
            torch.maximum(self.amax, h.abs().amax(), out=self.amax)
        return self.o(F.hardtanh(h, -100.0, 100.0) / 100.0)


def build_model():
    torch.manual_seed(0)
    return ObservedGLU()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(6, 8) * 500,)


def loss(output):
    return output.float().pow(2).mean()
