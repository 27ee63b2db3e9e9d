"""C83 per_module_conversion_unties_weights (tied-weights)

Reported in: huggingface/transformers PR 37905

Embedding and output head share one parameter. A converter that walks modules and installs a
freshly cast Parameter in each leaves two independent copies: memory doubles and training
updates only one of them.
"""

import torch
from torch import nn

SOURCE = "huggingface/transformers PR 37905"
KIND = "tied-weights"
EXPECT = {
    "naive": "custom",
    "symptom": "custom",
    "culprit_op": "embedding",
    "must_keep_fp32": [],
    "tied": [["emb.weight", "head.weight"]],
    "hazard": "tied-weights-broken",
    "safe": "cast each distinct parameter once and re-share it",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self, v=50, d=16):
        super().__init__()
        self.emb, self.fc, self.head = nn.Embedding(v, d), nn.Linear(d, d), nn.Linear(d, v, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.fc(self.emb(ids))))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 50, (2, 7)),)


def naive_convert(model, dtype=torch.bfloat16):
    for m in model.modules():
        for n, p in list(m._parameters.items()):
            if p is not None:
                setattr(m, n, nn.Parameter(p.detach().to(dtype)))
    return model


def custom_check():
    m = naive_convert(build_model())
    same = m.head.weight is m.emb.weight
    loss(m(*example_inputs())).backward()
    torch.optim.SGD(m.parameters(), lr=1.0).step()
    gap = (m.head.weight - m.emb.weight).float().abs().max().item()
    return (not same) and gap > 0, f"shared={same}, difference after one step {gap:.3g}"


def loss(output):
    return output.float().pow(2).mean()
