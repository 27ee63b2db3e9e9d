"""C64 policy_ratio_from_bf16_logprobs (error-amplification)

Reported in: allenai/open-instruct PR 1387 (also Modalities/modalities PR 464)

Importance ratio exp(log p - reference log p) from bf16 logits. Each log probability carries an
absolute error of about 0.1 at logit magnitude 30; the exponential turns that into a ten percent
error of a quantity that should be one.
"""

import torch
from torch import nn

SOURCE = "allenai/open-instruct PR 1387 (also Modalities/modalities PR 464)"
KIND = "error-amplification"
EXPECT = {
    "naive": "bf16",
    "symptom": "rel_err>0.1",
    "culprit_op": "exp",
    "must_keep_fp32": ["h", "ref", "lm_head", "log_softmax", "sub", "exp"],
    "hazard": "log-probability-precision",
    "safe": "fp32 lm_head output, log_softmax and difference",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self, d=64, v=500):
        super().__init__()
        self.lm_head = nn.Linear(d, v)
        with torch.no_grad():
            self.lm_head.weight.mul_(50.0)

    def forward(self, h, tok, ref):
        lp = torch.log_softmax(self.lm_head(h), -1)
        return torch.exp(torch.gather(lp, -1, tok[:, None])[:, 0] - ref)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    h = torch.randn(64, 64)
    tok = torch.randint(0, 500, (64,))
    with torch.no_grad():
        ref = torch.log_softmax(build_model().lm_head(h), -1).gather(-1, tok[:, None])[:, 0]
    return (h, tok, ref)
