"""C31 clamp_below_one_log1p (boundary-gradient)

Reported in: fastino-ai/GLiNER2 PR 155

log1p(-p.clamp(max=1 - 1e-6)): next to one neither bf16 nor half resolves 1e-6, the clamp does
nothing, and a saturated probability gives log(0). The forward recovers through exp, but the
backward multiplies inf by zero.
"""

import torch
from torch import nn

SOURCE = "fastino-ai/GLiNER2 PR 155"
KIND = "boundary-gradient"
EXPECT = {
    "naive": "bf16",
    "symptom": "nonfinite-grad",
    "culprit_op": "log1p",
    "must_keep_fp32": ["sigmoid", "clamp", "neg", "log1p", "sum", "exp"],
    "hazard": "epsilon-next-to-one",
    "safe": "fp32 for sigmoid..exp, or logsigmoid(-logit)",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 5)
        nn.init.constant_(self.fc.bias, 9.0)

    def forward(self, x):
        p = torch.sigmoid(self.fc(x))
        return 1.0 - torch.exp(torch.log1p(-p.clamp(max=1.0 - 1e-6)).sum(-1))


def build_model():
    torch.manual_seed(0)
    return Net()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(6, 8),)


def loss(output):
    return output.float().mean()
