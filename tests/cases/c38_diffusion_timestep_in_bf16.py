"""C38 diffusion_timestep_in_bf16 (integer-precision)

Reported in: modelscope/DiffSynth-Studio issue 562 (same cause: kohya-ss/musubi-tuner PR 729)

Flow-matching timesteps such as 998.39 are cast to bf16 before the sinusoidal embedding and
become 1000. The embedding's unit-frequency components then belong to a different time.
"""

import torch
from torch import nn

SOURCE = "modelscope/DiffSynth-Studio issue 562 (same cause: kohya-ss/musubi-tuner PR 729)"
KIND = "integer-precision"
EXPECT = {
    "naive": "bf16",
    "symptom": "rel_err>0.1",
    "culprit_op": "mul",
    "must_keep_fp32": ["t", "freqs", "mul", "cos", "sin"],
    "hazard": "timestep-precision",
    "safe": "keep the timestep input and the sinusoid in fp32; the MLP after it may be bf16",
    "safe_modes": ["autocast-bf16"],
}


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.register_buffer("freqs", torch.exp(-9.21 * torch.arange(d // 2) / (d // 2)))
        self.mlp = nn.Linear(d, 16)

    def forward(self, t):
        ang = t.unsqueeze(-1) * self.freqs
        return self.mlp(torch.cat((ang.cos(), ang.sin()), -1))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    return (torch.tensor([998.39, 988.49, 937.5, 833.25, 601.7]),)
