"""C12 finfo_min_plus_score_full_row (constant-out-of-range)

Reported in: huggingface/transformers PR 18057

Additive mask filled with the dtype's own minimum, added to raw scores. When a score below about
-16 meets -65504 the half sum is -inf; a query whose keys are all masked (left padding) then has
a row of -inf and the softmax is NaN. In fp32 the same sum rounds back to the minimum and the
row is uniform. Note that torch.export bakes the fp32 minimum into the graph as a literal, so a
graph-level cast meets a constant far out of range.
"""

import torch
from torch import nn

SOURCE = "huggingface/transformers PR 18057"
KIND = "constant-out-of-range"
EXPECT = {
    "naive": "fp16",
    "symptom": "nan",
    "culprit_op": "add",
    "must_keep_fp32": ["full_like", "where", "add", "softmax"],
    "hazard": "mask-min-plus-score-overflow",
    "safe": "bf16; or clamp after the add / fp32 softmax",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))

    def forward(self, x, pad_ok):
        s = torch.matmul(self.q(x), self.k(x).transpose(-2, -1)) - 40.0
        L = x.shape[1]
        ok = torch.ones(L, L, dtype=torch.bool).tril()[None] & pad_ok[:, None, :]
        low = torch.full_like(s, torch.finfo(s.dtype).min)
        s = s + torch.where(ok, torch.zeros_like(s), low)
        return torch.matmul(s.softmax(-1), self.v(x))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 6, 32), torch.tensor([[False, False, True, True, True, True], [True] * 6]))
