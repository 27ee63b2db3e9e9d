"""C63 greedy_token_ties_in_bf16 (decision-flip)

Reported in: vllm-project/tpu-inference PR 3580 (also vllm-project/vllm PR 13312)

Greedy decoding from bf16 logits. At magnitude 20 bf16 steps by 0.125, so the two best tokens
often store the same value and argmax returns whichever comes first.
"""

import torch
from torch import nn

SOURCE = "vllm-project/tpu-inference PR 3580 (also vllm-project/vllm PR 13312)"
KIND = "decision-flip"
EXPECT = {
    "naive": "bf16",
    "symptom": "flipped>0.05",
    "culprit_op": "argmax",
    "must_keep_fp32": ["h", "lm_head", "argmax"],
    "hazard": "argmax-ties",
    "safe": "fp32 logits (lm_head output in fp32) before argmax/top-k",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self, d=64, v=2000):
        super().__init__()
        self.lm_head = nn.Linear(d, v)
        nn.init.constant_(self.lm_head.bias, 20.0)

    def forward(self, h):
        logits = self.lm_head(h)
        return logits, logits.argmax(-1)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(300, 64),)
