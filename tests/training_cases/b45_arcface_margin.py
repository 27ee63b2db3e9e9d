import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "autocast-bf16",
    "symptom": "nonfinite-grad",
    "culprit_op": "acos",
    "line": "torch.acos(cosine)",
    "why": "Autocast computes the cosine logits in bf16; a sample close to its class centre gets exactly 1, where acos has an infinite slope.",
}


class ArcFace(nn.Module):
    def __init__(self, d=8, classes=4):
        super().__init__()
        self.embed = nn.Linear(d, d)
        self.centres = nn.Parameter(torch.randn(classes, d))
        with torch.no_grad():
            self.embed.weight.copy_(torch.eye(d))
            self.embed.bias.zero_()

    def forward(self, x, y):
        e = F.normalize(self.embed(x), dim=1)
        cosine = F.linear(e, F.normalize(self.centres, dim=1)).clamp(-1.0, 1.0)
        theta = torch.acos(cosine)
        return 16.0 * torch.cos(theta + 0.3 * F.one_hot(y, 4))


def build_model():
    torch.manual_seed(0)
    return ArcFace()


def example_inputs():
    c = build_model().centres.detach()
    torch.manual_seed(1)
    y = torch.arange(12) % 4
    return c[y] + 0.04 * torch.randn(12, 8), y


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(12) % 4)
