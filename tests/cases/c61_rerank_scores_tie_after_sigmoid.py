"""C61 rerank_scores_tie_after_sigmoid (decision-flip)

Reported in: huggingface/sentence-transformers PR 3893

Relevance logits are squashed by a sigmoid in bf16 before ranking. Confident logits crowd next
to one where bf16 has two or three values, so distinct candidates tie and their order is
arbitrary. Relative error of the scores themselves is tiny, which is why an error threshold
misses it.
"""

import torch
from torch import nn

SOURCE = "huggingface/sentence-transformers PR 3893"
KIND = "decision-flip"
EXPECT = {
    "naive": "bf16",
    "symptom": "flipped>0.2",
    "culprit_op": "sigmoid",
    "must_keep_fp32": ["head", "sigmoid", "topk"],
    "hazard": "score-ties",
    "safe": "fp32 for the score head, sigmoid and ranking",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(24, 24), nn.Linear(24, 1)
        nn.init.constant_(self.head.bias, 5.0)

    def forward(self, x):
        s = torch.sigmoid(self.head(torch.tanh(self.body(x)))[..., 0])
        return s, torch.topk(s, 5, -1).indices


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(20, 50, 24),)
