"""C80 antialiased_resize_in_bf16 (unsupported-op)

Reported in: pytorch/pytorch issue 175489 (also Comfy-Org/ComfyUI PR 14637)

Position grid resized with antialias=True. The antialiased CPU kernels know only float and
double, whereas the plain bilinear kernel does accept bf16.
"""

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = "pytorch/pytorch issue 175489 (also Comfy-Org/ComfyUI PR 14637)"
KIND = "unsupported-op"
EXPECT = {
    "naive": "bf16",
    "symptom": "crash",
    "error": "compute_index_ranges_weights",
    "culprit_op": "_upsample_bilinear2d_aa",
    "must_keep_fp32": ["_upsample_bilinear2d_aa"],
    "hazard": "antialias-low-precision",
    "safe": "upcast around the resize",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos, self.fc = nn.Parameter(torch.randn(1, 8, 12, 12)), nn.Linear(8, 8)

    def forward(self, x):
        p = F.interpolate(self.pos, size=(6, 6), mode="bilinear", antialias=True)
        return self.fc(x + p.flatten(2).transpose(1, 2))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 36, 8),)
