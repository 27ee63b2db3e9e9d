import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "symptom": "nonfinite-grad",
    "culprit_op": "pow",
    "line": "pooled.pow(1.0 / self.p)",
    "why": "Cubes of features of 1e-3 are zero in half, so the cube root is differentiated at 0.",
}


class GeM(nn.Module):
    def __init__(self, p=3.0, eps=1e-6):
        super().__init__()
        self.p, self.eps = p, eps

    def forward(self, x):
        pooled = F.adaptive_avg_pool2d(x.clamp(min=self.eps).pow(self.p), 1).flatten(1)
        return pooled.pow(1.0 / self.p)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 5, stride=2, bias=False)
        self.pool, self.fc = GeM(), nn.Linear(8, 4)

    def forward(self, img):
        return self.fc(self.pool(F.relu(self.stem(img))) * 300)


def build_model():
    torch.manual_seed(0)
    return Retrieval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.rand(3, 3, 15, 15) * 0.004,)


def loss(output):
    return F.mse_loss(output.float(), torch.ones_like(output.float()))
