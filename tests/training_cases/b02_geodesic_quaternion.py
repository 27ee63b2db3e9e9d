import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "nonfinite-grad",
    "culprit_op": "acos",
    "line": "cosine.acos()",
    "why": "The dot product of two almost equal unit quaternions rounds to exactly 1 in bf16, where acos has an infinite slope.",
}


class PoseHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 16), nn.SiLU(), nn.Linear(16, 4))
        self.register_buffer("identity", torch.tensor([1.0, 0.0, 0.0, 0.0]))

    def forward(self, feats, target):
        q = F.normalize(self.identity + 0.1 * self.trunk(feats), dim=-1)
        cosine = torch.einsum("bi,bi->b", q, target).abs().clamp(max=1.0)
        return 2.0 * cosine.acos()


def build_model():
    torch.manual_seed(0)
    return PoseHead()


def example_inputs():
    torch.manual_seed(1)
    t = torch.zeros(9, 4)
    t[:, 0] = 1.0
    return torch.randn(9, 12) * 0.7, t


def loss(output):
    return output.float().mean()
