"""C90 fp8_storage_type_promotion (fp8-promotion)

Reported in: modelscope/DiffSynth-Studio issue 855 (also Comfy-Org/ComfyUI issue 4474)

Every parameter, norm weights included, is stored as e4m3. As soon as one meets a bf16
activation in an elementwise op, PyTorch refuses: float8 takes no part in type promotion.
"""

import torch
from torch import nn

SOURCE = "modelscope/DiffSynth-Studio issue 855 (also Comfy-Org/ComfyUI issue 4474)"
KIND = "fp8-promotion"
EXPECT = {
    "naive": "fp8-storage",
    "symptom": "crash",
    "error": "Promotion for Float8",
    "culprit_op": "mul",
    "must_keep_fp32": ["weight"],
    "hazard": "fp8-no-promotion",
    "safe": "fp8 only for the operands of scaled matmuls; norm weights stay bf16/fp32",
    "safe_modes": ["bf16"],
}


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.weight, self.fc = nn.Parameter(torch.ones(d)), nn.Linear(d, d)

    def forward(self, x):
        n = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.fc(n * self.weight)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 32),)
