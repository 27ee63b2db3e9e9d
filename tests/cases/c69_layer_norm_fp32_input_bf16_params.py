"""C69 layer_norm_fp32_input_bf16_params (dtype-mismatch)

Reported in: modelscope/FunASR issue 2092

A norm that defensively upcasts its input to fp32, but whose weight and bias were cast to bf16
with the rest of the model. CPU layer_norm accepts low-precision input with fp32 parameters, not
the reverse.
"""

import torch
from torch import nn

SOURCE = "modelscope/FunASR issue 2092"
KIND = "dtype-mismatch"
EXPECT = {
    "naive": "bf16",
    "symptom": "crash",
    "error": "mixed dtype",
    "culprit_op": "layer_norm",
    "must_keep_fp32": ["norm"],
    "hazard": "mixed-dtype-norm",
    "safe": "keep the norm's parameters in fp32 (then the explicit upcast works), or drop the upcast",
    "safe_modes": ["autocast-bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x):
        h = self.fc(x)
        return self.norm(h.to(torch.float32)).to(h.dtype)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(4, 16),)
