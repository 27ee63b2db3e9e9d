"""C03 qk_product_before_scale (activation-overflow)

Reported in: ultralytics/ultralytics PR 24990

Attention that multiplies by 1/sqrt(d) only after the query-key product. The unscaled dot
products exceed the half range although the scaled logits would fit; softmax of a row holding
+inf is NaN. Scaling the query first is algebraically the same and stays in range.
"""

import torch
from torch import nn

SOURCE = "ultralytics/ultralytics PR 24990"
KIND = "activation-overflow"
EXPECT = {
    "naive": "fp16",
    "symptom": "nan",
    "culprit_op": "matmul",
    "must_keep_fp32": ["matmul", "mul", "softmax"],
    "hazard": "attention-logit-overflow-fp16",
    "safe": "bf16; or fp16 with the query scaled before the product / fp32 logits",
    "safe_modes": ["bf16"],
}


class Attn(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.scale = d**-0.5
        with torch.no_grad():
            self.q.weight.copy_(torch.eye(d) * 60)
            self.k.weight.copy_(torch.eye(d) * 60)

    def forward(self, x):
        att = torch.matmul(self.q(x), self.k(x).transpose(-2, -1)) * self.scale
        return torch.matmul(att.softmax(-1), self.v(x))


def build_model():
    torch.manual_seed(0)
    return Attn().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 12, 64),)
