import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "update_lost",
    "culprit_op": "<optimizer.step>",
    "line": "torch.optim.Adam([",
    "param": "logit_scale",
    "steps": 25,
    "why": "The learned log temperature 2.66 has a bf16 spacing of 0.016, so Adam steps of 1e-3 never move it while the towers do learn.",
}


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 12)
        )
        self.text = nn.EmbeddingBag(30, 12, mode="sum")
        self.logit_scale = nn.Parameter(torch.tensor(2.6592))

    def forward(self, img, ids):
        a = F.normalize(self.image(img), dim=-1)
        b = F.normalize(self.text(ids), dim=-1)
        return self.logit_scale.exp() * a @ b.T


def build_model():
    torch.manual_seed(0)
    return Clip()


def example_inputs():
    torch.manual_seed(1)
    return torch.randn(6, 3, 9, 9), torch.randint(0, 30, (6, 4))


def loss(output):
    t = torch.arange(6)
    o = output.float()
    return (F.cross_entropy(o, t) + F.cross_entropy(o.T, t)) / 2


def make_optimizer(params):
    return torch.optim.Adam([{"params": list(params)}], lr=1e-3)
